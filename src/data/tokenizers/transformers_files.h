// tokenizer_config.json and tokenizer.json, through which transformers' AutoTokenizer loads the folders that save()
// writes.
#pragma once
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "data/tokenizers/sentencepiece_bpe.h"

namespace lazy {

struct SentencePieceConfig {
  std::string bos_token, eos_token, unk_token;  // empty: the model has none
  bool add_prefix_space = false;
  bool has_json = false;  // tokenizer.json stands beside tokenizer.model
};
// With tokenizer.json, transformers loads that and needs neither sentencepiece nor protobuf; else it is told to read
// tokenizer.model as a LlamaTokenizer.
void write_sentencepiece_config(const std::filesystem::path& directory, const SentencePieceConfig& config);

// A SentencePiece BPE model with byte fallback as tokenizer.json. load_tokenizer() itself reads tokenizer.model.
void write_sentencepiece_json(const std::filesystem::path& directory, const SentencePieceConfig& config,
                              const std::vector<SentencePiece>& pieces);

// The `bytes` tokenizer. transformers has no class for it; load_tokenizer() reads the file back.
void write_bytes_config(const std::filesystem::path& directory);
// True when the folder's tokenizer_config.json was written by write_bytes_config.
bool is_bytes_config(const std::filesystem::path& directory);

}  // namespace lazy
