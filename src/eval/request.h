// A question as the benchmarks put it: how likely is this continuation of that context.
#pragma once
#include <cstdint>
#include <vector>

#include "eval/windows.h"

namespace lazy::eval {

// Token ids. Requests of one question (its choices) stand next to each other and mostly begin alike: what they share is
// computed once.
struct Request {
  std::vector<int32_t> context, continuation;
  bool operator==(const Request&) const = default;
};

// What the model sees of it, by lm-evaluation-harness's rule: the last max_length + 1 ids of context + continuation,
// the final one only as a target. Error when the continuation alone is empty or longer than max_length, or when no
// token precedes it.
Window window_of(const Request& request, int64_t max_length);

}  // namespace lazy::eval
