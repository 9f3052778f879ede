#include <limits>

#include "attention/reference/rows.h"

namespace lazy::kernels::reference {

void forward_row(const Problem& p, const Forward<double>& a, const Sequence& s, int64_t head, int64_t row,
                 int64_t count) {
  const KeyRange keys = visible_keys(p, s, row);
  Weights w;
  w.lse = -std::numeric_limits<double>::infinity();
  if (keys.count() > 0) {
    w = normalize(p.normalizer, row_scores(p, a, s, head, row, keys), row_parameters(p, a, head, count));
  }
  double* out = at(a.out, s.batch, s.q_begin + row, head);
  for (int64_t d = 0; d < p.value_dim; ++d) out[d * a.out.dim] = 0;
  double sum = 0;
  for (int64_t j = keys.begin; j < keys.end; ++j) {
    const double weight = w.weight[j - keys.begin];
    const double* v = at(a.v, s.batch, s.k_begin + j, head / (p.heads / p.kv_heads));
    for (int64_t d = 0; d < p.value_dim; ++d) out[d * a.out.dim] += weight * v[d * a.v.dim];
    sum += weight;
  }
  const int64_t index = row_index(p, s, head, row), part = p.batch * p.heads * p.q_length;
  if (a.lse) a.lse[index] = w.lse;
  if (a.stats) {
    a.stats[index] = keys.count() > 0 && keys.begin == 0 ? w.weight[0] : 0;
    a.stats[part + index] = 1 - sum;
    a.stats[2 * part + index] = static_cast<double>(w.alive);
  }
}

void forward(const Problem& p, const Forward<double>& a) {
  for (int64_t n = 0; n < sequence_count(p); ++n) {
    const Sequence s = sequence(p, n);
    for (int64_t head = 0; head < p.heads; ++head) {
      for (int64_t row = 0; row < s.q_length; ++row) {
        forward_row(p, a, s, head, row, visible_keys(p, s, row).count());
      }
    }
  }
}

}  // namespace lazy::kernels::reference
