#include "generate/text_stream.h"

#include <algorithm>

#include "core/text.h"

namespace lazy {
namespace {

constexpr size_t kContext = 8;

}  // namespace

TextStream::TextStream(const Tokenizer& tokenizer, std::span<const int64_t> before) : tokenizer_(tokenizer) {
  for (const int64_t id : before.last(std::min(before.size(), kContext))) {
    if (id < tokenizer.vocab_size()) previous_.push_back(static_cast<int32_t>(id));
  }
}

std::string TextStream::push(int64_t token) {
  const auto id = static_cast<int32_t>(token);
  pending_ += tokenizer_.next_piece(previous_, id);
  if (previous_.size() >= kContext) previous_.erase(previous_.begin());
  previous_.push_back(id);
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
