// Softmax with a learned sink (gpt-oss): one more score z that takes part in the sum and has no value vector.
// With delta = sum_j p_j g_j:  ds_j = p_j (g_j - delta),  dz = -p_z delta.
#include <algorithm>
#include <cmath>

#include "attention/reference/normalizer.h"

namespace lazy::kernels::reference {

Weights softmax_sink(const std::vector<double>& score, const RowParameters& parameters) {
  const double largest = std::max(parameters.sink, *std::max_element(score.begin(), score.end()));
  double sum = std::exp(parameters.sink - largest);
  for (double s : score) sum += std::exp(s - largest);
  Weights row;
  row.lse = largest + std::log(sum);
  for (double s : score) row.weight.push_back(std::exp(s - largest) / sum);
  row.alive = static_cast<int64_t>(score.size());
  return row;
}

RowGradient softmax_sink_backward(const std::vector<double>& score, const RowParameters& parameters,
                                  const std::vector<double>& d_weight) {
  const Weights row = softmax_sink(score, parameters);
  double delta = 0;
  for (size_t j = 0; j < score.size(); ++j) delta += row.weight[j] * d_weight[j];
  RowGradient gradient;
  for (size_t j = 0; j < score.size(); ++j) gradient.d_score.push_back(row.weight[j] * (d_weight[j] - delta));
  gradient.d_sink = -std::exp(parameters.sink - row.lse) * delta;
  return gradient;
}

}  // namespace lazy::kernels::reference
