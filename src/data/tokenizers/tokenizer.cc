// Functions of the class Tokenizer that all kinds of tokenizers share.
#include "data/tokenizer.h"

namespace lazy {

std::vector<std::vector<int32_t>> Tokenizer::encode_batch(std::span<const std::string> texts) const {
  std::vector<std::vector<int32_t>> out;
  out.reserve(texts.size());
  for (const std::string& text : texts) out.push_back(encode(text));
  return out;
}

std::string Tokenizer::next_piece(std::span<const int32_t>, int32_t id) const { return piece(id); }

std::vector<int32_t> without_special_tokens(const Tokenizer& tokenizer, std::span<const int32_t> ids) {
  std::vector<int32_t> out;
  for (const int32_t id : ids) {
    if (!tokenizer.is_special(id)) out.push_back(id);
  }
  return out;
}

}  // namespace lazy
