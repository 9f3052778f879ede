// Absolute position embeddings (sinusoidal or learned) and the slopes of ALiBi.
#pragma once
#include <cstdint>
#include <vector>

#include "model/torch_forward.h"

namespace lazy {

// Returns the ALiBi slopes of all heads. If n is the largest power of 2 that is at most `heads`, the first n slopes are
// 2^(-8 r / n) for r = 1, ..., n. The remaining slopes are the first, third, fifth, ... slope of a model with 2n heads.
std::vector<double> alibi_slopes(int64_t heads);

// Returns the sinusoidal embeddings of `positions` (int64, starting at 0), with shape (positions.sizes(), dim) in fp32.
// For position p, element 2t is sin(p / 10000^(2t / dim)), and element 2t + 1 is the cosine of the same angle. Angles
// are computed in fp64, which is accurate at large positions.
at::Tensor sinusoidal_positions(const at::Tensor& positions, int64_t dim);

// Returns the rows of `table` (max_length, dim) at `positions`. Throws an Error if a position is out of range; `end` is
// the last position plus 1.
at::Tensor learned_positions(const at::Tensor& table, const at::Tensor& positions, int64_t end);

}  // namespace lazy
