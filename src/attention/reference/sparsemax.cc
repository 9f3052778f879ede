// Sparsemax (Martins and Astudillo 2016): weight_j = max(s_j - theta, 0) with theta such that they sum to one;
// ds_j = g_j - mean of g over the support, for j in the support.
#include <algorithm>
#include <functional>

#include "attention/reference/normalizer.h"

namespace lazy::kernels::reference {

Weights sparsemax(const std::vector<double>& score, const RowParameters&) {
  if (has_nan(score)) return nan_row(score.size());
  std::vector<double> sorted = score;
  std::sort(sorted.begin(), sorted.end(), std::greater<>());
  double sum = 0, theta = 0;
  for (size_t k = 0; k < sorted.size(); ++k) {
    sum += sorted[k];
    if (static_cast<double>(k + 1) * sorted[k] > sum - 1) theta = (sum - 1) / static_cast<double>(k + 1);
  }
  Weights row;
  row.lse = theta;
  for (double s : score) {
    row.weight.push_back(std::max(s - theta, 0.0));
    row.alive += row.weight.back() > 0;
  }
  return row;
}

RowGradient sparsemax_backward(const std::vector<double>& score, const RowParameters& parameters,
                               const std::vector<double>& d_weight) {
  const Weights row = sparsemax(score, parameters);
  double mean = 0;
  for (size_t j = 0; j < score.size(); ++j) mean += row.weight[j] > 0 ? d_weight[j] : row.weight[j];
  mean /= static_cast<double>(row.alive);
  RowGradient gradient;
  for (size_t j = 0; j < score.size(); ++j)
    gradient.d_score.push_back(row.weight[j] > 0 ? d_weight[j] - mean : row.weight[j]);
  return gradient;
}

}  // namespace lazy::kernels::reference
