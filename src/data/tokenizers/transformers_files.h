// tokenizer_config.json, through which transformers' AutoTokenizer loads the folders that save() writes.
#pragma once
#include <filesystem>
#include <optional>
#include <string>

namespace lazy {

// A SentencePiece model (tokenizer.model beside it) as transformers' LlamaTokenizer.
struct SentencePieceConfig {
  std::string bos_token, eos_token, unk_token;  // empty: the model has none
  bool add_prefix_space = false;
};
void write_sentencepiece_config(const std::filesystem::path& directory, const SentencePieceConfig& config);

// The `bytes` tokenizer. transformers has no class for it; load_tokenizer() reads the file back.
void write_bytes_config(const std::filesystem::path& directory);
// True when the folder's tokenizer_config.json was written by write_bytes_config.
bool is_bytes_config(const std::filesystem::path& directory);

}  // namespace lazy
