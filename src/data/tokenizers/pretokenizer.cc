#include "data/tokenizers/pretokenizer.h"

#include "data/tokenizers/utf8.h"

namespace lazy {

void PreTokenizer::add_split(const std::string& pattern, const std::string& field, bool only_matches) {
  steps_.push_back({std::make_unique<Regex>(pattern, field), only_matches});
  description_ += pattern + (only_matches ? "\1" : "\2");
}

size_t PreTokenizer::valid_prefix(std::string_view text) {
  size_t at = 0;
  while (at < text.size()) {
    const size_t length = utf8_length(text, at);
    if (length == 0) break;
    at += length;
  }
  return at;
}

size_t PreTokenizer::invalid_prefix(std::string_view text) {
  size_t at = 0;
  while (at < text.size() && utf8_length(text, at) == 0) ++at;
  return at;
}

}  // namespace lazy
