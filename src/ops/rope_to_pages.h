// Rotation of new tokens and their keys and values into pages, in one pass on a GPU, and what attention reads of them.
#pragma once
#include <ATen/core/Tensor.h>

#include <cstdint>

#include "ops/key_sources.h"
#include "ops/rope.h"

namespace lazy::ops {

struct PagePlaces {
  at::Tensor keys, values;  // (pages, page_size, kv_heads, head_dim) contiguous; changed
  at::Tensor slots;         // (batch * length) int64: page * page_size + place
  double rope_base = 0;     // 0: no rotation
  RopeOptions rope;         // with positions (batch, length) int64
  int64_t longest = 0;      // an upper bound of the positions, for the size of tables; more is slower
};
struct PageWrite : PagePlaces {
  at::Tensor q, k, v;  // (batch, length, heads or kv_heads, head_dim)
};
// Writes k, rotated, and v to their slots. Returns q, rotated.
at::Tensor rope_to_pages(const PageWrite& write);

// The same, and keys and values of whole sequences as attention reads them. Row n of these comes from sources[n]
// (int64, ops/key_sources.h). A token that no source names need not be written to its slot. What sources find in pages
// is not a slot of `write`.
struct GatheredKeys {
  at::Tensor q, keys, values;  // keys and values (rows, kv_heads, head_dim)
};
GatheredKeys rope_to_pages_and_gather(const PageWrite& write, const at::Tensor& sources);

// The same, bit for bit, in the product of a norm that makes q, k and v, W's parts: rows of input.x are tokens. Where
// serves_few_rows(input.x) on a GPU and goes_to_pages(to).
struct FewRowsInput;
at::Tensor few_rows_to_pages(const FewRowsInput& input, const at::Tensor& W, const PagePlaces& to);
bool goes_to_pages(const PagePlaces& to);

}  // namespace lazy::ops
