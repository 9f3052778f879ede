#include "generate/output_text.h"

#include <algorithm>

namespace lazy {

OutputText::OutputText(const Tokenizer& tokenizer, std::vector<std::string> stop_strings, bool skip_special_tokens,
                       std::span<const int64_t> before)
    : tokenizer_(tokenizer),
      skip_special_tokens_(skip_special_tokens),
      stream_(tokenizer, before),
      stops_(std::move(stop_strings)) {}

std::string OutputText::push(int64_t token) {
  if (!skip_special_tokens_ || !tokenizer_.is_special(static_cast<int32_t>(token))) {
    const std::string text = stream_.push(token);
    pushed_ += text.size();
    return visible(stops_.push(text));
  }
  const std::string before = stream_.finish(), text = tokenizer_.piece(static_cast<int32_t>(token));
  pushed_ += before.size() + text.size();
  hidden_.emplace_back(pushed_ - text.size(), pushed_);
  return visible(stops_.push(before) + stops_.push(text));
}

std::string OutputText::finish() {
  const std::string text = stream_.finish();
  pushed_ += text.size();
  return visible(stops_.push(text) + stops_.finish());
}

std::string OutputText::visible(std::string text) {
  std::string out;
  size_t at = 0;
  while (at < text.size()) {
    while (!hidden_.empty() && hidden_.front().second <= released_) hidden_.pop_front();
    const size_t left = text.size() - at;
    size_t count = left;
    const bool hide = !hidden_.empty() && hidden_.front().first <= released_;
    if (!hidden_.empty()) {
      const uint64_t end = hide ? hidden_.front().second : hidden_.front().first;
      count = std::min<size_t>(left, end - released_);
    }
    if (!hide) out += text.substr(at, count);
    at += count;
    released_ += count;
  }
  return out;
}

}  // namespace lazy
