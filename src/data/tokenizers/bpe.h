// Byte-level byte-pair encoding, the tokenizers of GPT-2, Llama 3 and Qwen.
#pragma once
#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "data/tokenizer.h"
#include "data/tokenizers/pretokenizer.h"

namespace lazy {

// The vocabulary, merges and settings that the files of a byte-level BPE tokenizer define.
struct BpeDefinition {
  struct Merge {
    int32_t left, right, merged;
  };
  std::vector<std::string> tokens;  // the bytes that each id represents; empty for an unused id
  // reachable[id] is true if the vocabulary spells the token in the alphabet of byte-level BPE, which has one printable
  // character per byte. encode() never produces other tokens.
  std::vector<bool> reachable;
  std::vector<Merge> merges;  // in order of rank, without duplicate pairs
  TokenTable table;
  PreTokenizer pre_tokenizer;
  bool nfc = false;
  bool ignore_merges = false;                // a word that is itself a token becomes this token without merging
  std::map<std::string, std::string> files;  // maps file names to contents, as save() writes them
};

// read_vocab_and_merges() uses the settings of the tokenizer class that the folder names, or of GPT-2 if the folder
// names none. read_tokenizer_json() reads Hugging Face's tokenizer.json. Errors contain the file and the field. Both
// functions throw NotNative (tokenizer_json.h) for features that make_bpe_tokenizer() does not support exactly.
BpeDefinition read_vocab_and_merges(const std::filesystem::path& vocab, const std::filesystem::path& merges);
BpeDefinition read_tokenizer_json(const std::filesystem::path& path);

std::unique_ptr<Tokenizer> make_bpe_tokenizer(BpeDefinition definition);

}  // namespace lazy
