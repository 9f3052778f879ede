// Elastic-Softmax (arXiv 2601.00919, eq. 5): weight_j = m_j (p_j + offset), p = softmax(s), m_j = [p_j + offset > 0].
// With g = m d_weight:  ds_j = p_j (g_j - sum_k p_k g_k),  d_offset = sum_j g_j.
// With offset >= 0 every visible key is alive, whether or not its probability underflowed. NaN is alive: it shows.
#include "attention/reference/normalizer.h"

namespace lazy::kernels::reference {

static bool alive(double probability, double offset) { return offset >= 0 || !(probability + offset <= 0); }

Weights elastic(const std::vector<double>& score, const RowParameters& parameters) {
  Weights row = softmax(score, parameters);
  row.alive = 0;
  for (double& weight : row.weight) {
    const bool keep = alive(weight, parameters.offset);
    row.alive += keep;
    weight = keep ? weight + parameters.offset : 0;
  }
  return row;
}

RowGradient elastic_backward(const std::vector<double>& score, const RowParameters& parameters,
                             const std::vector<double>& d_weight) {
  const Weights p = softmax(score, parameters);
  std::vector<double> g(score.size());
  double delta = 0;
  RowGradient gradient;
  for (size_t j = 0; j < score.size(); ++j) {
    g[j] = alive(p.weight[j], parameters.offset) ? d_weight[j] : 0;
    delta += p.weight[j] * g[j];
    gradient.d_offset += g[j];
  }
  for (size_t j = 0; j < score.size(); ++j) gradient.d_score.push_back(p.weight[j] * (g[j] - delta));
  return gradient;
}

}  // namespace lazy::kernels::reference
