// A long text cut into windows that a model can take, so that every token is predicted exactly once.
#pragma once
#include <cstdint>
#include <span>
#include <vector>

namespace lazy::eval {

// What a model is asked: the log-probability of `targets`, which follow the last targets.size() tokens of `input` one
// by one. input.size() >= targets.size() >= 1.
struct Window {
  std::vector<int32_t> input, targets;
  bool operator==(const Window&) const = default;
};

// The rolling windows of lm-evaluation-harness: the first predicts up to max_length tokens after `prefix`; the next
// ones keep `context_length` tokens of context and predict max_length - context_length + 1; the last is extended to the
// left, so that its input is max_length long too and only what remains is scored.
// 1 <= context_length <= max_length. No tokens, no windows.
std::vector<Window> rolling_windows(std::span<const int32_t> tokens, int32_t prefix, int64_t max_length,
                                    int64_t context_length = 1);

}  // namespace lazy::eval
