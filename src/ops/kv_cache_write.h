// KV-cache write: applies RoPE to q and k of new tokens and writes k and v to the pages of the cache, in one pass on a
// GPU. Optionally also gathers the keys and values that attention reads.
#pragma once
#include <ATen/core/Tensor.h>

#include <cstdint>

#include "ops/page_indices.h"
#include "ops/rope.h"

namespace lazy::ops {

struct PagePlaces {
  at::Tensor keys, values;  // page pools (pages, page_size, kv_heads, head_dim), contiguous; modified in place
  at::Tensor slots;         // (batch * length) int64: page * page_size + offset in the page
  double rope_base = 0;     // 0: no rotation
  RopeOptions rope;         // rope.positions must be (batch, length) int64
  int64_t longest = 0;      // number of positions in the RoPE table; RoPE at later positions is correct but slower
};
struct PageWrite : PagePlaces {
  at::Tensor q, k, v;  // (batch, length, heads or kv_heads, head_dim)
};
// Writes the rotated k and v to their slots. Returns the rotated q.
at::Tensor kv_cache_write(const PageWrite& write);

// kv_cache_write_and_gather() does the same as kv_cache_write, and also gathers the keys and values of whole sequences
// into contiguous tensors for attention. Row n of these tensors comes from sources[n] (int64, see ops/page_indices.h).
// The cache write of a token to which no source refers may be omitted. A source in the pages must not be a slot to
// which `write` writes.
struct GatheredKeys {
  at::Tensor q, keys, values;  // q as in PageWrite, rotated; keys and values (rows, kv_heads, head_dim)
};
GatheredKeys kv_cache_write_and_gather(const PageWrite& write, const at::Tensor& sources);

// Fuses the QKV projection with its RMSNorm and the KV-cache write; the results are bitwise equal to skinny_gemm
// and kv_cache_write. W contains the weights of q, k and v; the rows of input.x are tokens. Requires
// supports_skinny_gemm(input.x) on a GPU and can_write_pages(to).
struct SkinnyGemmInput;
at::Tensor skinny_gemm_kv_cache_write(const SkinnyGemmInput& input, const at::Tensor& W, const PagePlaces& to);
// Whether skinny_gemm_kv_cache_write supports these pages.
bool can_write_pages(const PagePlaces& to);

}  // namespace lazy::ops
