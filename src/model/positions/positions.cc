#include "model/positions/positions.h"

#include <ATen/ATen.h>

#include <cmath>

#include "core/error.h"

namespace lazy {

std::vector<double> alibi_slopes(int64_t heads) {
  int64_t n = 1;
  while (2 * n <= heads) n *= 2;
  std::vector<double> slopes;
  for (int64_t r = 1; r <= n; ++r) slopes.push_back(std::exp2(-8.0 * static_cast<double>(r) / static_cast<double>(n)));
  for (int64_t r = 1; r <= heads - n; ++r) {
    slopes.push_back(std::exp2(-8.0 * static_cast<double>(2 * r - 1) / static_cast<double>(2 * n)));
  }
  return slopes;
}

at::Tensor sinusoidal_positions(const at::Tensor& positions, int64_t dim) {
  const auto options = positions.options().dtype(at::kDouble);
  const at::Tensor frequencies = at::pow(10000.0, at::arange(0, dim, 2, options) / -static_cast<double>(dim));
  const at::Tensor angles = positions.to(at::kDouble).unsqueeze(-1) * frequencies;
  return at::stack({angles.sin(), angles.cos()}, -1).flatten(-2).narrow(-1, 0, dim).to(at::kFloat);
}

at::Tensor learned_positions(const at::Tensor& table, const at::Tensor& positions, int64_t end) {
  if (end > table.size(0)) {
    fail("model", "positions: expected at most max_position_embeddings ({}) tokens, found {}", table.size(0), end);
  }
  return at::embedding(table, positions);
}

}  // namespace lazy
