// Windows packed into one forward pass of the model without padding; shared prefixes are computed once.
#pragma once
#include <cstdint>
#include <span>
#include <vector>

#include "eval/requests.h"
#include "model/forward_options.h"

namespace lazy::eval {

// Windows first, ..., first + count - 1, whose inputs begin with the same `shared` tokens.
struct PrefixGroup {
  size_t first = 0, count = 1;
  int64_t shared = 0;    // 0 for a group of one window
  int64_t computed = 0;  // tokens that go through the model
  bool operator==(const PrefixGroup&) const = default;
};

// Groups neighbours greedily: a window joins while that lowers the number of tokens to compute.
std::vector<PrefixGroup> group_by_prefix(const std::vector<Window>& windows);
// For models that cannot continue from the middle of another sequence: a window joins when its input is a prefix of the
// group's first input, so that it has nothing left to compute.
std::vector<PrefixGroup> group_contained(const std::vector<Window>& windows);
// Every window is a group of its own.
std::vector<PrefixGroup> group_singly(const std::vector<Window>& windows);

struct Batch {
  PackedSequences tokens;
  // (N) int64: the row of the token that precedes each scored target, and the target id; window after window.
  at::Tensor rows, labels;
  // Windows first, first + 1, ... are scored; the n-th of them has the rows begins[n], ..., begins[n + 1] - 1.
  size_t first = 0;
  std::vector<int64_t> begins;
};

// Packs neighbouring groups for `device`. Copies to a GPU are asynchronous.
Batch pack(const std::vector<Window>& windows, std::span<const PrefixGroup> groups, at::Device device);

}  // namespace lazy::eval
