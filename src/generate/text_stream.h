// Incremental decoding of tokens to text, split only between complete UTF-8 characters.
#pragma once
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "data/tokenizer.h"

namespace lazy {

// Decodes token by token and returns only complete UTF-8 characters.
class TextStream {
 public:
  // `before` contains the tokens that precede the text, such as the prompt. With some tokenizers, the text of a token
  // depends on the tokens before it.
  explicit TextStream(const Tokenizer& tokenizer, std::span<const int64_t> before = {});
  std::string push(int64_t token);  // the characters that this token completes
  std::string finish();             // the remaining text, with invalid bytes replaced
 private:
  const Tokenizer& tokenizer_;
  std::string pending_;
  std::vector<int32_t> previous_;  // the most recent tokens, on which the text of the next token may depend
};

}  // namespace lazy
