// Export to Hugging Face: the tokenizer_config.json and tokenizer.json through which AutoTokenizer loads saved folders.
#pragma once
#include <filesystem>
#include <string>
#include <vector>

#include "data/tokenizers/sentencepiece_bpe.h"

namespace lazy {

struct SentencePieceConfig {
  std::string bos_token, eos_token, unk_token;  // empty: the model has none
  bool add_prefix_space = false;
  bool has_json = false;  // the folder also has tokenizer.json
};
// With a tokenizer.json transformers needs neither sentencepiece nor protobuf; otherwise the configuration names
// LlamaTokenizer, which reads tokenizer.model.
void write_sentencepiece_config(const std::filesystem::path& directory, const SentencePieceConfig& config);

// The content of tokenizer.json for a SentencePiece BPE model with byte fallback.
std::string sentencepiece_json(const SentencePieceConfig& config, const std::vector<SentencePiece>& pieces);

// The `bytes` tokenizer. transformers has no class for it; load_tokenizer() reads the file back.
void write_bytes_config(const std::filesystem::path& directory);
// Whether the folder's tokenizer_config.json was written by write_bytes_config.
bool is_bytes_config(const std::filesystem::path& directory);

}  // namespace lazy
