// Which windows begin alike: the choices of a question share its context, and what is shared is computed once.
#pragma once
#include <cstdint>
#include <vector>

#include "eval/windows.h"

namespace lazy::eval {

// Windows first, ..., first + count - 1, whose inputs begin with the same `shared` tokens.
struct PrefixGroup {
  size_t first = 0, count = 1;
  int64_t shared = 0;    // 0 for a window on its own
  int64_t computed = 0;  // tokens that go through the model
  bool operator==(const PrefixGroup&) const = default;
};

// Neighbours are grouped as long as each one that joins lowers the number of tokens to compute.
std::vector<PrefixGroup> group_by_prefix(const std::vector<Window>& windows);
// For models that cannot go on from another sequence's middle: neighbours whose inputs are the first's, or a beginning
// of it, and have nothing left to compute.
std::vector<PrefixGroup> group_by_whole(const std::vector<Window>& windows);
std::vector<PrefixGroup> each_alone(const std::vector<Window>& windows);

}  // namespace lazy::eval
