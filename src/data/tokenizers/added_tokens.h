// Added tokens such as <|endoftext|>. They are matched in the text before normalization and pre-tokenization.
#pragma once
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace lazy {

struct AddedToken {
  int32_t id = 0;
  std::string content;
  bool lstrip = false, rstrip = false;  // lstrip: the match includes white space before the token; rstrip: after it
  bool special = false;
  bool normalized = false;   // the token is matched in the normalized text
  bool single_word = false;  // the token is only matched if it is not adjacent to word characters
};

// Finds added tokens in a text from left to right. If several tokens match at the same position, the longest one is
// used.
class AddedTokenMatcher {
 public:
  explicit AddedTokenMatcher(std::vector<AddedToken> tokens);
  bool empty() const { return tokens_.empty(); }

  // Calls plain(text) for text without added tokens and token(id) for added tokens, in order.
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
  std::vector<AddedToken> tokens_;  // sorted by first byte, then from longest to shortest
  // The tokens in tokens_ whose content starts with byte b have the indices [by_byte_[b], by_byte_[b + 1]).
  std::vector<uint32_t> by_byte_;
};

}  // namespace lazy
