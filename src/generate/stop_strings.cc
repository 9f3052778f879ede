#include "generate/stop_strings.h"

#include <algorithm>

namespace lazy {

// Uses the Knuth-Morris-Pratt algorithm with one matching state per string.
StopStrings::StopStrings(std::vector<std::string> strings) {
  for (std::string& text : strings) {
    if (text.empty()) continue;
    Pattern pattern{std::move(text), {}, 0};
    pattern.fallback.assign(pattern.text.size() + 1, 0);
    for (size_t n = 1, prefix = 0; n < pattern.text.size(); ++n) {
      while (prefix > 0 && pattern.text[n] != pattern.text[prefix]) prefix = pattern.fallback[prefix];
      if (pattern.text[n] == pattern.text[prefix]) ++prefix;
      pattern.fallback[n + 1] = prefix;
    }
    patterns_.push_back(std::move(pattern));
  }
}

std::string StopStrings::push(std::string_view piece) {
  if (found_) return "";
  if (patterns_.empty()) return std::string(piece);
  std::string out;
  size_t undecided = 0;
  for (const char byte : piece) {
    held_ += byte;
    size_t complete = 0;
    undecided = 0;
    for (Pattern& pattern : patterns_) {
      while (pattern.matched > 0 && pattern.text[pattern.matched] != byte) {
        pattern.matched = pattern.fallback[pattern.matched];
      }
      if (pattern.text[pattern.matched] == byte) ++pattern.matched;
      if (pattern.matched == pattern.text.size()) complete = std::max(complete, pattern.matched);
      undecided = std::max(undecided, pattern.matched);
    }
    if (complete > 0) {
      found_ = true;
      out += held_.substr(0, held_.size() - complete);
      held_.clear();
      return out;
    }
  }
  if (!piece.empty()) {
    out += held_.substr(0, held_.size() - undecided);
    held_.erase(0, held_.size() - undecided);
  }
  return out;
}

std::string StopStrings::finish() {
  std::string out;
  std::swap(out, held_);
  return out;
}

}  // namespace lazy
