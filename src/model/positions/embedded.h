// Positions that are added to the token embeddings: a learned table (GPT-2), or sines and cosines (Vaswani et al.
// 2017).
#pragma once
#include <ATen/core/Tensor.h>

namespace lazy {

// (positions.sizes(), dim) fp32: entry 2t is sin(p / 10000^(2t / dim)), 2t + 1 its cosine (SPEC section 2). positions:
// int64, from 0. Angles are taken in fp64, so that positions far from 0 keep their digits.
at::Tensor sinusoidal_positions(const at::Tensor& positions, int64_t dim);

// Rows of `table` (max_length, dim). Error when a position lies beyond it: `end` is the last one plus 1.
at::Tensor learned_positions(const at::Tensor& table, const at::Tensor& positions, int64_t end);

}  // namespace lazy
