// Converts the tokens of the neural memory to the layout of the fast-weights kernels, and converts the outputs back.
#pragma once
#include <ATen/core/Tensor.h>

#include <cstdint>

namespace lazy {

// Returns x / sqrt(sum x^2 + 1e-6), with the sum over the last dimension, in fp32.
at::Tensor unit_length(const at::Tensor& x);

// Pads x (B, H, tokens, ...) with zeros to `length` tokens.
at::Tensor pad_tokens(const at::Tensor& x, int64_t length);

// The tokens of B sequences with H heads, divided into chunks of T tokens. If the last chunk is incomplete, it is
// padded with zeros.
struct MemoryTokensInChunks {
  at::Tensor q, k, target;  // (chunks, B * H, T, dim)
};
// Converts q, k and v (B, H, tokens, dim) to chunks of T tokens. If `raw` is true, q, k and v may have any
// floating-point dtype, and the function normalizes q and k to unit length. If `residual` is true, the target is v - k
// instead of v. If `rounded` is true, matrix products may use TF32 (as FastWeights::rounded).
MemoryTokensInChunks memory_tokens(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, int64_t chunks,
                                   int64_t T, bool raw, bool residual, bool rounded);

// Returns x + LayerNorm(z) * norm, where x are the inputs and z the outputs of the memory's MLP in chunks. The result
// has the shape (B, H, tokens, dim) and dtype `type`. If norm (heads, dim) is undefined, returns z with this shape.
at::Tensor memory_outputs(const at::Tensor& z, const at::Tensor& x, const at::Tensor& norm, int64_t B, int64_t tokens,
                          at::ScalarType type, bool rounded);

}  // namespace lazy
