// Converts generated tokens to the text that a user sees: without special tokens, and cut at stop strings.
#pragma once
#include <cstdint>
#include <deque>
#include <string>
#include <utility>
#include <vector>

#include "generate/stop_strings.h"
#include "generate/text_stream.h"

namespace lazy {

class OutputText {
 public:
  // If `skip_special_tokens` is true, the texts of special tokens ("</s>") are omitted. Stop strings can still match
  // these texts. `before` contains the tokens that precede the text, such as the prompt.
  OutputText(const Tokenizer& tokenizer, std::vector<std::string> stop_strings, bool skip_special_tokens = true,
             std::span<const int64_t> before = {});
  // Returns the text that `token` completes, except for text that may still become part of a stop string.
  std::string push(int64_t token);
  // Returns the remaining text with invalid bytes replaced, or "" after a stop string.
  std::string finish();
  bool stopped() const { return stops_.found(); }

 private:
  std::string visible(std::string text);

  const Tokenizer& tokenizer_;
  bool skip_special_tokens_;
  TextStream stream_;
  StopStrings stops_;
  uint64_t pushed_ = 0, released_ = 0;  // number of bytes passed to stops_, and number of bytes that stops_ returned
  // The texts of special tokens, which are omitted from the result, as ascending ranges in the bytes passed to stops_.
  std::deque<std::pair<uint64_t, uint64_t>> hidden_;
};

}  // namespace lazy
