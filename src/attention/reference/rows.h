// Functions of the reference implementation for query rows: addresses, scores, and parameters of the normalizer.
#pragma once
#include <cmath>
#include <cstdlib>
#include <vector>

#include "attention/reference/normalizers.h"
#include "lazy/attention.h"
#include "lazy/visibility.h"

namespace lazy::kernels::reference {

inline const double* at(const ConstView& view, int64_t batch, int64_t token, int64_t head) {
  return static_cast<const double*>(view.data) + batch * view.batch + token * view.token + head * view.head;
}
inline double* at(const View& view, int64_t batch, int64_t token, int64_t head) {
  return static_cast<double*>(view.data) + batch * view.batch + token * view.token + head * view.head;
}

// Index of a row in lse and in each of the arrays of shape (batch, heads, q_length) in stats and score_stats.
inline int64_t row_index(const Problem& p, const Sequence& s, int64_t head, int64_t row) {
  return (s.batch * p.heads + head) * p.q_length + s.q_begin + row;
}

// Returns one score per visible key. Arguments is Forward<double> or Backward<double>. If `slopes` is not null, it
// receives the derivatives of the scores with respect to scale q . k. Without a softcap they are 1; with a softcap c
// they are 1 - tanh(scale q . k / c)^2.
template <typename Arguments>
std::vector<double> row_scores(const Problem& p, const Arguments& a, const Sequence& s, int64_t head, int64_t row,
                               KeyRange keys, std::vector<double>* slopes = nullptr) {
  const double* q = at(a.q, s.batch, s.q_begin + row, head);
  std::vector<double> scores;
  for (int64_t j = keys.begin; j < keys.end; ++j) {
    const double* k = at(a.k, s.batch, s.k_begin + j, head / (p.heads / p.kv_heads));
    const int64_t distance = std::abs(position(s, row) - j);
    double dot = 0;
    for (int64_t d = 0; d < p.head_dim; ++d) dot += q[d * a.q.dim] * k[d * a.k.dim];
    double score = p.scale * dot, slope = 1;
    if (p.softcap > 0) {
      const double inverse = 1 / std::cosh(score / p.softcap);
      score = p.softcap * std::tanh(score / p.softcap);
      slope = inverse * inverse;  // 1 - tanh^2 without cancellation
    }
    if (slopes) slopes->push_back(slope);
    if (a.distance_bias && distance < p.bias_window) score += a.distance_bias[head * p.bias_window + distance];
    if (a.alibi_slopes) score -= a.alibi_slopes[head] * static_cast<double>(distance);
    scores.push_back(score);
  }
  return scores;
}

// Returns the parameters with which a row is normalized. `visible` is the number of keys that the row sees.
template <typename Arguments>
RowParameters row_parameters(const Problem& p, const Arguments& a, int64_t head, int64_t visible) {
  const double count = static_cast<double>(visible);
  RowParameters parameters;
  parameters.offset_scale = p.offset == Offset::per_visible ? 1 / count : 1;
  if (a.tau) parameters.offset = a.tau[head] * parameters.offset_scale;
  if (a.sink) parameters.sink = a.sink[head];
  parameters.sigmoid_bias = std::isnan(p.sigmoid_bias) ? -std::log(count) : p.sigmoid_bias;
  return parameters;
}

}  // namespace lazy::kernels::reference
