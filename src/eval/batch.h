// Packs windows into one forward pass of the model without padding. Shared prefixes are computed only once.
#pragma once
#include <cstdint>
#include <span>
#include <vector>

#include "eval/requests.h"
#include "model/forward_options.h"

namespace lazy::eval {

// The windows first, ..., first + count - 1. Their inputs start with the same `shared` tokens.
struct PrefixGroup {
  size_t first = 0, count = 1;
  int64_t shared = 0;    // 0 for a group of one window
  int64_t computed = 0;  // number of tokens that go through the model
  bool operator==(const PrefixGroup&) const = default;
};

// Groups adjacent windows greedily: a window joins a group if this reduces the number of tokens to compute.
std::vector<PrefixGroup> group_by_prefix(const std::vector<Window>& windows);
// Grouping for models that cannot continue from the middle of a sequence. A window joins a group only if its input is a
// prefix of the first input of the group, so that it needs no additional computation.
std::vector<PrefixGroup> group_contained(const std::vector<Window>& windows);
// Every window forms a separate group.
std::vector<PrefixGroup> group_singly(const std::vector<Window>& windows);

struct Batch {
  PackedSequences tokens;
  // (N) int64, ordered by window: the row of the token that precedes each scored target, and the id of the target.
  at::Tensor rows, labels;
  // Windows first, first + 1, ... are scored. The n-th of them has the rows begins[n], ..., begins[n + 1] - 1.
  size_t first = 0;
  std::vector<int64_t> begins;
};

// Packs consecutive groups for `device`. Copies to a GPU are asynchronous.
Batch pack(const std::vector<Window>& windows, std::span<const PrefixGroup> groups, at::Device device);

}  // namespace lazy::eval
