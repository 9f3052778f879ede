// Writes tokenizer_config.json and tokenizer.json, so that AutoTokenizer of Hugging Face's transformers can load a
// saved folder.
#pragma once
#include <filesystem>
#include <string>
#include <vector>

#include "data/tokenizers/sentencepiece_bpe.h"

namespace lazy {

struct SentencePieceConfig {
  std::string bos_token, eos_token, unk_token;  // empty: the model has no such token
  bool add_prefix_space = false;
  bool has_json = false;  // whether the folder also contains tokenizer.json
};
// Writes tokenizer_config.json. If the folder contains tokenizer.json (has_json), transformers needs neither
// sentencepiece nor protobuf. Otherwise the file names the class LlamaTokenizer, which reads tokenizer.model.
void write_sentencepiece_config(const std::filesystem::path& directory, const SentencePieceConfig& config);

// Returns the content of tokenizer.json for a SentencePiece BPE model with byte fallback.
std::string sentencepiece_json(const SentencePieceConfig& config, const std::vector<SentencePiece>& pieces);

// Writes the configuration of the `bytes` tokenizer. transformers has no class for it; load_tokenizer() reads the file.
void write_bytes_config(const std::filesystem::path& directory);
// Returns whether tokenizer_config.json of the folder was written by write_bytes_config.
bool is_bytes_config(const std::filesystem::path& directory);

}  // namespace lazy
