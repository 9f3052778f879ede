// Strings that end a text, found where tokens do not end with them.
#pragma once
#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

namespace lazy {

// The text ends before the stop string that is complete first (of several complete at one byte, the longest), however
// the text is cut into pieces. What may still become a stop string is held back.
class StopStrings {
 public:
  explicit StopStrings(std::vector<std::string> strings);  // none is empty
  // Takes the next piece and returns what is certain to belong to the text.
  std::string push(std::string_view piece);
  bool found() const { return found_; }
  // The text has ended: what was held back. Nothing after a stop string.
  std::string finish();

 private:
  struct Pattern {
    std::string text;
    std::vector<size_t> fallback;  // [n]: length of the longest proper prefix that ends the first n bytes
    size_t matched = 0;            // length of the longest prefix that ends the text
  };
  std::vector<Pattern> patterns_;
  std::string held_;
  bool found_ = false;
};

}  // namespace lazy
