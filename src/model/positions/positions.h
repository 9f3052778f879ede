// Position information other than RoPE and relative positions: embeddings that are added to the tokens', and ALiBi's
// slopes.
#pragma once
#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

namespace lazy {

// With n the largest power of 2 up to heads: 2^(-8 r / n) for r = 1 ... n, then the odd powers of the sequence of 2n
// heads.
std::vector<double> alibi_slopes(int64_t heads);

// (positions.sizes(), dim) fp32: entry 2t is sin(p / 10000^(2t / dim)), 2t + 1 its cosine. positions:
// int64, from 0. Angles are taken in fp64, so that positions far from 0 keep their digits.
at::Tensor sinusoidal_positions(const at::Tensor& positions, int64_t dim);

// Rows of `table` (max_length, dim). Error when a position lies beyond it: `end` is the last one plus 1.
at::Tensor learned_positions(const at::Tensor& table, const at::Tensor& positions, int64_t end);

}  // namespace lazy
