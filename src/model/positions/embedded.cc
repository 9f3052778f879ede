#include "model/positions/embedded.h"

#include <ATen/ATen.h>

#include "core/error.h"

namespace lazy {

at::Tensor sinusoidal_positions(const at::Tensor& positions, int64_t dim) {
  const auto options = positions.options().dtype(at::kDouble);
  const at::Tensor frequencies = at::pow(10000.0, at::arange(0, dim, 2, options) / -static_cast<double>(dim));
  const at::Tensor angles = positions.to(at::kDouble).unsqueeze(-1) * frequencies;
  return at::stack({angles.sin(), angles.cos()}, -1).flatten(-2).narrow(-1, 0, dim).to(at::kFloat);
}

at::Tensor learned_positions(const at::Tensor& table, const at::Tensor& positions, int64_t end) {
  if (end > table.size(0)) {
    fail("model", "positions: the learned ones end at max_position_embeddings ({}), found a text of {} tokens",
         table.size(0), end);
  }
  return at::embedding(table, positions);
}

}  // namespace lazy
