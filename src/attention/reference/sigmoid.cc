// Sigmoid attention (Ramapuram et al. 2024): weight_j = 1 / (1 + exp(-(s_j + beta)));  ds_j = weight_j (1 - weight_j)
// g_j.
#include <cmath>

#include "attention/reference/normalizer.h"

namespace lazy::kernels::reference {

Weights sigmoid(const std::vector<double>& score, const RowParameters& parameters) {
  Weights row;
  for (double s : score) row.weight.push_back(1 / (1 + std::exp(-(s + parameters.sigmoid_bias))));
  row.alive = static_cast<int64_t>(score.size());
  return row;
}

RowGradient sigmoid_backward(const std::vector<double>& score, const RowParameters& parameters,
                             const std::vector<double>& d_weight) {
  const Weights row = sigmoid(score, parameters);
  RowGradient gradient;
  for (size_t j = 0; j < score.size(); ++j) {
    gradient.d_score.push_back(row.weight[j] * (1 - row.weight[j]) * d_weight[j]);
  }
  return gradient;
}

}  // namespace lazy::kernels::reference
