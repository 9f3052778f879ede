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

// The content of a tokenizer's files.
struct BpeDefinition {
  struct Merge {
    int32_t left, right, merged;
  };
  std::vector<std::string> tokens;  // bytes of each id; empty where an id is unused
  std::vector<bool> reachable;      // by id: the token consists of characters that stand for bytes; the others, such as
                                    // raw text in the vocabulary, are never the result of encoding
  std::vector<Merge> merges;        // in order of rank; no pair twice
  TokenTable table;
  PreTokenizer pre_tokenizer;
  bool nfc = false;
  bool ignore_merges = false;                // a word that is itself a token is not merged from its bytes
  std::map<std::string, std::string> files;  // name -> content, as save() writes them
};

// From vocab.json and merges.txt, read as the folder's tokenizer class defines (GPT-2's where nothing names one), or
// from Hugging Face's tokenizer.json. Errors name the file and the field; NotNative (tokenizer_json.h) for what this
// class does not compute exactly.
BpeDefinition read_vocab_and_merges(const std::filesystem::path& vocab, const std::filesystem::path& merges);
BpeDefinition read_tokenizer_json(const std::filesystem::path& path);

std::unique_ptr<Tokenizer> make_bpe_tokenizer(BpeDefinition definition);

}  // namespace lazy
