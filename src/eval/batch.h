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
  int64_t shared = 0;    // length of the shared prefix; 0 for a group of one window
  int64_t computed = 0;  // number of tokens that go through the model
  bool operator==(const PrefixGroup&) const = default;
};

// Groups adjacent windows greedily: a window joins the group of its predecessor if this reduces the number of tokens
// that the model has to compute.
std::vector<PrefixGroup> group_by_prefix(const std::vector<Window>& windows);
// Groups windows for models that cannot continue from the middle of a sequence. A window joins a group only if its
// input is a prefix of the input of the group's first window. It then needs no additional computation.
std::vector<PrefixGroup> group_contained(const std::vector<Window>& windows);
// Returns one group per window, so that no prefixes are shared.
std::vector<PrefixGroup> group_singly(const std::vector<Window>& windows);

struct Batch {
  PackedSequences tokens;
  // Two int64 tensors (number of scored targets), ordered by window. rows: the row of the batch whose output predicts
  // the target. labels: the token id of the target.
  at::Tensor rows, labels;
  // The batch scores windows first, first + 1, ... The entries begins[n], ..., begins[n + 1] - 1 of `rows` and `labels`
  // belong to window first + n.
  size_t first = 0;
  std::vector<int64_t> begins;
};

// Packs consecutive groups for `device`. Copies to a GPU are asynchronous.
Batch pack(const std::vector<Window>& windows, std::span<const PrefixGroup> groups, at::Device device);

}  // namespace lazy::eval
