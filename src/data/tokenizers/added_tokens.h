// Added tokens such as <|endoftext|>: matched in the text before normalization and pre-tokenization.
#pragma once
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace lazy {

struct AddedToken {
  int32_t id = 0;
  std::string content;
  bool lstrip = false, rstrip = false;  // absorbs white space before / after it
  bool special = false;
  bool normalized = false;   // matched in the normalized text
  bool single_word = false;  // matched only between characters that are not part of words
};

// Finds the leftmost added token, the longest of those that begin at the same position.
class AddedTokenMatcher {
 public:
  explicit AddedTokenMatcher(std::vector<AddedToken> tokens);
  bool empty() const { return tokens_.empty(); }

  // Calls plain(text) for text without added tokens and token(id) for the tokens, in order.
  template <typename Plain, typename Token>
  void run(std::string_view text, Plain&& plain, Token&& token) const {
    size_t last = 0, begin, end;
    const AddedToken* found;
    while (!tokens_.empty() && (found = find(text, last, &begin, &end))) {
      if (begin > last) plain(text.substr(last, begin - last));
      token(found->id);
      last = end;
    }
    if (last < text.size()) plain(text.substr(last));
  }

 private:
  const AddedToken* find(std::string_view text, size_t from, size_t* begin, size_t* end) const;
  std::vector<AddedToken> tokens_;  // sorted by content
  std::vector<uint32_t> by_byte_;   // tokens whose content begins with byte b: [by_byte_[b], by_byte_[b + 1])
};

}  // namespace lazy
