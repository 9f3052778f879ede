// Absolute position embeddings (sinusoidal, learned) and ALiBi's slopes.
#pragma once
#include <cstdint>
#include <vector>

#include "model/torch_forward.h"

namespace lazy {

// ALiBi's slopes. With n the largest power of 2 up to heads: 2^(-8 r / n) for r = 1 ... n, then the odd powers of the
// slopes for 2n heads.
std::vector<double> alibi_slopes(int64_t heads);

// (positions.sizes(), dim) fp32: entry 2t is sin(p / 10000^(2t / dim)), entry 2t + 1 the cosine. positions: int64, from
// 0. Angles are computed in fp64 for precision at large positions.
at::Tensor sinusoidal_positions(const at::Tensor& positions, int64_t dim);

// Rows of `table` (max_length, dim). Error if a position is out of range; `end` is the last position plus 1.
at::Tensor learned_positions(const at::Tensor& table, const at::Tensor& positions, int64_t end);

}  // namespace lazy
