// The neural memory's tokens on their way to fast weights and back.
#pragma once
#include <ATen/core/Tensor.h>

#include <cstdint>

namespace lazy {

// x / sqrt(sum x^2 + 1e-6) over the last dimension, in fp32.
at::Tensor unit_length(const at::Tensor& x);

// x (B, H, tokens, ...) and zeros, up to `length` tokens.
at::Tensor pad_tokens(const at::Tensor& x, int64_t length);

// B sequences of H heads, cut into chunks of T tokens; those that a text lacks in them are zeros.
struct MemoryTokensInChunks {
  at::Tensor q, k, target;  // (chunks, B * H, T, dim)
};
// q, k, v (B, H, tokens, dim). raw: of any floating type and length, and q and k are given unit length here. residual:
// the target is v - k, otherwise v. rounded: see FastWeights.
MemoryTokensInChunks memory_tokens(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, int64_t chunks,
                                   int64_t T, bool raw, bool residual, bool rounded);

// x + LayerNorm(z) norm at inputs x and outputs z of the memory in chunks; z without a norm (heads, dim), where it is
// undefined. (B, H, tokens, dim) of this type
at::Tensor memory_outputs(const at::Tensor& z, const at::Tensor& x, const at::Tensor& norm, int64_t B, int64_t tokens,
                          at::ScalarType type, bool rounded);

}  // namespace lazy
