#include "data/tokenizers/added_tokens.h"

#include <algorithm>

#include "data/tokenizers/unicode.h"

namespace lazy {
namespace {

// Returns the number of bytes of the white-space character at the start of `text`, or 0.
size_t space_at(std::string_view text) {
  const auto byte = [&](size_t i) { return i < text.size() ? static_cast<unsigned char>(text[i]) : 0u; };
  if (byte(0) == ' ' || (byte(0) >= '\t' && byte(0) <= '\r')) return text.empty() ? 0 : 1;
  if (byte(0) == 0xC2 && (byte(1) == 0x85 || byte(1) == 0xA0)) return 2;
  const uint32_t three = byte(0) << 16 | byte(1) << 8 | byte(2);
  const bool wide = three == 0xE19A80 || (three >= 0xE28080 && three <= 0xE2808A) || three == 0xE280A8 ||
                    three == 0xE280A9 || three == 0xE280AF || three == 0xE2819F || three == 0xE38080;
  return wide ? 3 : 0;
}

}  // namespace

AddedTokenMatcher::AddedTokenMatcher(std::vector<AddedToken> tokens) : tokens_(std::move(tokens)) {
  std::erase_if(tokens_, [](const AddedToken& token) { return token.content.empty(); });
  std::sort(tokens_.begin(), tokens_.end(), [](const AddedToken& a, const AddedToken& b) {
    const auto first = [](const AddedToken& t) { return static_cast<unsigned char>(t.content[0]); };
    if (first(a) != first(b)) return first(a) < first(b);
    return a.content.size() > b.content.size();  // among tokens with the same first byte, the longest comes first
  });
  by_byte_.assign(257, 0);
  for (const AddedToken& token : tokens_) ++by_byte_[static_cast<unsigned char>(token.content[0]) + 1];
  for (size_t b = 0; b < 256; ++b) by_byte_[b + 1] += by_byte_[b];
}

const AddedToken* AddedTokenMatcher::find(std::string_view text, size_t from, size_t* begin, size_t* end) const {
  for (size_t at = from; at < text.size(); ++at) {
    const auto byte = static_cast<unsigned char>(text[at]);
    for (uint32_t t = by_byte_[byte]; t < by_byte_[byte + 1]; ++t) {
      const AddedToken& token = tokens_[t];
      if (text.compare(at, token.content.size(), token.content) != 0) continue;
      *begin = at;
      *end = at + token.content.size();
      if (token.lstrip) {
        size_t start = at;
        while (start > from) {  // moves back one character at a time
          size_t back = start - 1;
          while (back > from && (static_cast<unsigned char>(text[back]) & 0xC0) == 0x80) --back;
          if (space_at(text.substr(back)) != start - back) break;
          start = back;
        }
        *begin = start;
      }
      if (token.rstrip) {
        while (const size_t space = space_at(text.substr(*end))) *end += space;
      }
      return &token;
    }
  }
  return nullptr;
}

}  // namespace lazy
