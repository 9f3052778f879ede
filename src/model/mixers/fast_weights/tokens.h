// Tokens as fast weights take them.
#pragma once
#include <ATen/core/Tensor.h>

#include <cstdint>

namespace lazy::fast_weights {

// (batch, heads, chunks * T, ...) -> (chunks, batch * heads, T, ...), contiguous, and back.
at::Tensor to_chunks(const at::Tensor& x, int64_t chunks);
at::Tensor from_chunks(const at::Tensor& x, int64_t batch);

// What the heads have, (heads, 1, dim), for those of every sequence: (batch * heads, 1, dim).
at::Tensor for_all(const at::Tensor& of_heads, int64_t batch);

}  // namespace lazy::fast_weights
