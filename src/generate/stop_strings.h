// Stop strings, which end a generated text. A match may end in the middle of a token.
#pragma once
#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

namespace lazy {

// The text ends before the stop string whose match is complete first; of several matches that end at the same byte, the
// longest one counts. The result does not depend on how the text is split into pieces. Text that may still become part
// of a stop string is held back.
class StopStrings {
 public:
  explicit StopStrings(std::vector<std::string> strings);  // empty strings are ignored
  // Adds the next piece and returns the text that cannot become part of a stop string.
  std::string push(std::string_view piece);
  bool found() const { return found_; }
  // Ends the text. Returns the text that was held back, or "" after a stop string.
  std::string finish();

 private:
  struct Pattern {
    std::string text;
    // The failure function of the Knuth-Morris-Pratt algorithm. Entry n belongs to the first n bytes of `text`: it is
    // the length of their longest proper prefix that is also their suffix.
    std::vector<size_t> fallback;
    size_t matched = 0;  // length of the longest prefix of `text` with which the generated text so far ends
  };
  std::vector<Pattern> patterns_;
  std::string held_;
  bool found_ = false;
};

}  // namespace lazy
