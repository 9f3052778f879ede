// weight_j = exp(s_j - lse);  ds_j = p_j (g_j - sum_k p_k g_k).
#include <algorithm>
#include <cmath>

#include "attention/reference/normalizer.h"

namespace lazy::kernels::reference {

Weights softmax(const std::vector<double>& score, const RowParameters&) {
  const double largest = *std::max_element(score.begin(), score.end());
  double sum = 0;
  for (double s : score) sum += std::exp(s - largest);
  Weights row;
  row.lse = largest + std::log(sum);
  for (double s : score) row.weight.push_back(std::exp(s - largest) / sum);
  row.alive = static_cast<int64_t>(score.size());  // an underflowed weight is still a weight
  return row;
}

RowGradient softmax_backward(const std::vector<double>& score, const RowParameters& parameters,
                             const std::vector<double>& d_weight) {
  const Weights row = softmax(score, parameters);
  double delta = 0;
  for (size_t j = 0; j < score.size(); ++j) delta += row.weight[j] * d_weight[j];
  RowGradient gradient;
  for (size_t j = 0; j < score.size(); ++j) gradient.d_score.push_back(row.weight[j] * (d_weight[j] - delta));
  return gradient;
}

}  // namespace lazy::kernels::reference
