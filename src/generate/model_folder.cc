#include "generate/model_folder.h"

#include "core/text.h"
#include "model/config.h"

namespace lazy {

ModelFolder load_model_folder(const std::filesystem::path& directory, const ModelOptions& options) {
  // The tokenizer first: a mismatch is reported before the weights are read.
  const ModelConfig config = ModelConfig::from_directory(directory);
  auto tokenizer = load_tokenizer(directory.string());
  check_tokenizer(config, tokenizer->fingerprint(), tokenizer->vocab_size(), directory.string());
  return {open_model(directory, options), std::move(tokenizer)};
}

std::vector<int64_t> encode_prompt(const Tokenizer& tokenizer, const std::string& text, bool bos) {
  std::vector<int64_t> out;
  if (bos && tokenizer.bos_id()) out.push_back(*tokenizer.bos_id());
  for (const int32_t id : tokenizer.encode(text)) out.push_back(id);
  return out;
}

std::string TextStream::push(int64_t token) {
  pending_ += tokenizer_.piece(static_cast<int32_t>(token));
  const size_t complete = complete_utf8_prefix(pending_);
  std::string out = to_valid_utf8(pending_.substr(0, complete));
  pending_.erase(0, complete);
  return out;
}

std::string TextStream::finish() {
  std::string out = to_valid_utf8(pending_);
  pending_.clear();
  return out;
}

}  // namespace lazy
