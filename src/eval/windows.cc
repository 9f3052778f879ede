#include "eval/windows.h"

#include <algorithm>

#include "core/error.h"

namespace lazy::eval {

std::vector<Window> rolling_windows(std::span<const int32_t> tokens, int32_t prefix, int64_t max_length,
                                    int64_t context_length) {
  if (context_length < 1 || context_length > max_length) {
    fail("eval", "context length: expected 1 to {} (the maximum length), found {}", max_length, context_length);
  }
  std::vector<Window> windows;
  const auto total = static_cast<int64_t>(tokens.size());
  if (total == 0) return windows;
  const auto slice = [&](int64_t begin, int64_t end) {
    return std::vector<int32_t>(tokens.begin() + begin, tokens.begin() + end);
  };

  const int64_t first = std::min(max_length, total);
  Window window{{prefix}, slice(0, first)};
  window.input.insert(window.input.end(), tokens.begin(), tokens.begin() + first - 1);
  windows.push_back(std::move(window));
  for (int64_t predicted = first; predicted < total;) {
    const int64_t count = std::min(total - predicted, max_length - context_length + 1);
    const int64_t end = predicted + count;
    windows.push_back({slice(end - max_length - 1, end - 1), slice(end - count, end)});
    predicted = end;
  }
  return windows;
}

}  // namespace lazy::eval
