// lazy::rope: rotary position embedding (SPEC section 2). Dimension d is paired with d + head_dim / 2 ("rotate half") and
// the pair turns by position * base^(-2 d / head_dim); angles in fp64, cosines and sines rounded to fp32.
#pragma once
#include <ATen/core/Tensor.h>

#include <cstdint>

namespace lazy::ops {

// x (batch, length, heads, head_dim), any strides with contiguous head_dim; token t stands at position offset + t.
// Returns a contiguous tensor of x's shape and type (fp32 or bf16). Differentiable in x (the inverse rotation).
at::Tensor rope(const at::Tensor& x, double base, int64_t offset = 0);

}  // namespace lazy::ops
