// Windows laid out for one pass of the model: end to end, without padding, shared beginnings once.
#pragma once
#include <span>
#include <vector>

#include "eval/prefix.h"
#include "model/packed.h"

namespace lazy::eval {

struct Batch {
  PackedSequences tokens;
  // (N) int64: the token that each scored target follows, and the target; window after window.
  at::Tensor rows, labels;
  // Windows first ... first + count - 1 are scored; the n-th has the rows begins[n] ... begins[n + 1] - 1.
  size_t first = 0;
  std::vector<int64_t> begins;
};

// Neighbouring groups, to a device; on a GPU without waiting for the copies.
Batch lay_out(const std::vector<Window>& windows, std::span<const PrefixGroup> groups, at::Device device);

}  // namespace lazy::eval
