// The text of generated tokens as a reader sees it: without special tokens, cut at stop strings.
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
  // `skip_special_tokens`: the texts of special tokens ("</s>") are left out. Stop strings still see them.
  // `before`: the tokens that the text follows.
  OutputText(const Tokenizer& tokenizer, std::vector<std::string> stop_strings, bool skip_special_tokens = true,
             std::span<const int64_t> before = {});
  // The text that this token completes and that cannot become part of a stop string.
  std::string push(int64_t token);
  // The rest, with invalid bytes replaced. Nothing after a stop string.
  std::string finish();
  bool stopped() const { return stops_.found(); }

 private:
  std::string visible(std::string text);

  const Tokenizer& tokenizer_;
  bool skip_special_tokens_;
  TextStream stream_;
  StopStrings stops_;
  uint64_t pushed_ = 0, released_ = 0;                // bytes given to and returned by stops_
  std::deque<std::pair<uint64_t, uint64_t>> hidden_;  // ranges of these bytes that are left out, in order
};

}  // namespace lazy
