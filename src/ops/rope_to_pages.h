// Rotation of new tokens and their keys and values into pages, in one pass on a GPU.
#pragma once
#include <ATen/core/Tensor.h>

#include <cstdint>

#include "ops/rope.h"

namespace lazy::ops {

struct PageWrite {
  at::Tensor q, k, v;       // (batch, length, heads or kv_heads, head_dim)
  at::Tensor keys, values;  // (pages, page_size, kv_heads, head_dim) contiguous; changed
  at::Tensor slots;         // (batch * length) int64: page * page_size + place
  double rope_base = 0;     // 0: no rotation
  RopeOptions rope;         // with positions (batch, length) int64
  int64_t longest = 0;      // an upper bound of the positions, for the size of tables; more is slower
};
// Writes k, rotated, and v to their slots. Returns q, rotated.
at::Tensor rope_to_pages(const PageWrite& write);

}  // namespace lazy::ops
