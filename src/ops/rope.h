// lazy::rope: rotary position embedding (SPEC section 2). The first rotary_dim dimensions of every head form pairs;
// pair n turns by position * frequency(n), in fp64, with cosines and sines rounded to fp32. The other dimensions stay.
#pragma once
#include <ATen/core/Tensor.h>

#include <cstdint>

#include "ops/rope_frequencies.h"

namespace lazy::ops {

struct RopeOptions {
  int64_t rotary_dim = -1;   // even, at most head_dim; -1: head_dim
  bool interleaved = false;  // pairs (2n, 2n + 1); otherwise (n, n + rotary_dim / 2), as Llama, Qwen and gpt-oss
  RopeScaling scaling;
  at::Tensor positions;  // (length) or (batch, length) int32 or int64, from 0; undefined: offset, offset + 1, ...
};

// x (batch, length, heads, head_dim) or packed (tokens, heads, head_dim), fp32 or bf16, on a GPU fp16 too, any strides.
// Token t stands at position offset + t, or where options.positions says. Returns a contiguous tensor of x's shape and
// type. Differentiable in x: the gradient turns back. Errors: "lazy::rope: expected ..., received ...".
//
// On a GPU nobody waits to look at positions: a negative one makes its token NaN, and those beyond x's length and
// beyond the table (8192 or more, as many as a call without positions needed) are computed anew, to the same result but
// slower.
at::Tensor rope(const at::Tensor& x, double base, int64_t offset = 0, const RopeOptions& options = {});

}  // namespace lazy::ops
