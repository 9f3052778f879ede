#include "generate/model_folder.h"

#include "model/config.h"

namespace lazy {

ModelFolder load_model_folder(const std::filesystem::path& directory, const ModelOptions& options) {
  // The tokenizer first: a mismatch is reported before the weights are read.
  const ModelConfig config = ModelConfig::from_directory(directory);
  auto tokenizer = load_tokenizer(directory.string());
  check_tokenizer(config, tokenizer->fingerprint(), tokenizer->vocab_size(), directory.string());
  return {open_model(directory, options), std::move(tokenizer)};
}

std::vector<int64_t> end_tokens(const ModelConfig& config, const Tokenizer& tokenizer) {
  std::vector<int64_t> out;
  if (config.eos_token_id >= 0) out.push_back(config.eos_token_id);
  if (const auto eos = tokenizer.eos_id(); eos && *eos != config.eos_token_id) out.push_back(*eos);
  return out;
}

std::vector<int64_t> encode_prompt(const Tokenizer& tokenizer, const std::string& text, bool bos) {
  std::vector<int64_t> out;
  if (bos && tokenizer.bos_id()) out.push_back(*tokenizer.bos_id());
  for (const int32_t id : tokenizer.encode(text)) out.push_back(id);
  return out;
}

}  // namespace lazy
