// Entmax with alpha = 1.5 (Peters, Niculae and Martins 2019): weight_j = max(s_j / 2 - theta, 0)^2 with theta such that
// they sum to one; with r = sqrt(weight), ds_j = r_j (g_j - sum r g / sum r).
#include <algorithm>
#include <cmath>
#include <functional>

#include "attention/reference/normalizer.h"

namespace lazy::kernels::reference {

Weights entmax15(const std::vector<double>& score, const RowParameters&) {
  if (has_nan(score)) return nan_row(score.size());
  const double largest = *std::max_element(score.begin(), score.end());
  std::vector<double> sorted;
  for (double s : score) sorted.push_back((s - largest) / 2);
  std::sort(sorted.begin(), sorted.end(), std::greater<>());
  double sum = 0, sum_squares = 0, theta = 0;
  for (size_t i = 0; i < sorted.size(); ++i) {
    const double k = static_cast<double>(i + 1);
    sum += sorted[i];
    sum_squares += sorted[i] * sorted[i];
    const double mean = sum / k, variance = k * (sum_squares / k - mean * mean);
    const double candidate = mean - std::sqrt(std::max((1 - variance) / k, 0.0));
    if (candidate <= sorted[i]) theta = candidate;
  }
  Weights row;
  row.lse = theta + largest / 2;
  for (double s : score) {
    const double root = std::max((s - largest) / 2 - theta, 0.0);
    row.weight.push_back(root * root);
    row.alive += root > 0;
  }
  return row;
}

RowGradient entmax15_backward(const std::vector<double>& score, const RowParameters& parameters,
                              const std::vector<double>& d_weight) {
  const Weights row = entmax15(score, parameters);
  double sum_root = 0, sum_root_g = 0;
  for (size_t j = 0; j < score.size(); ++j) {
    sum_root += std::sqrt(row.weight[j]);
    sum_root_g += std::sqrt(row.weight[j]) * d_weight[j];
  }
  RowGradient gradient;
  for (size_t j = 0; j < score.size(); ++j) {
    gradient.d_score.push_back(std::sqrt(row.weight[j]) * (d_weight[j] - sum_root_g / sum_root));
  }
  return gradient;
}

}  // namespace lazy::kernels::reference
