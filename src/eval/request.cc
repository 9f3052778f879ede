#include "eval/request.h"

#include <algorithm>

#include "core/error.h"

namespace lazy::eval {

Window window_of(const Request& request, int64_t max_length) {
  const auto count = static_cast<int64_t>(request.continuation.size());
  if (count < 1 || count > max_length) {
    fail("eval", "continuation: expected 1 to {} tokens (the maximum length), found {}", max_length, count);
  }
  if (request.context.empty()) fail("eval", "context: expected a token that the continuation follows, found none");
  std::vector<int32_t> input = request.context;
  input.insert(input.end(), request.continuation.begin(), request.continuation.end() - 1);
  const auto surplus = static_cast<int64_t>(input.size()) - max_length;
  if (surplus > 0) input.erase(input.begin(), input.begin() + surplus);
  return {std::move(input), request.continuation};
}

}  // namespace lazy::eval
