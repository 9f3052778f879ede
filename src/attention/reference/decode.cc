// Decoding by definition: the cache of one sequence is gathered from its pages, then every row is the forward's.
#include "lazy/decode.h"

#include <limits>

#include "attention/reference/rows.h"

namespace lazy::kernels::reference {

namespace {

// (keys, kv_heads, dim), contiguous.
std::vector<double> gather(const Problem& p, const Decode<double>& a, const ConstView& cache, int64_t b, int64_t keys,
                           int64_t dim) {
  std::vector<double> rows;
  for (int64_t j = 0; j < keys; ++j) {
    const int64_t page = a.block_table ? a.block_table[b * a.table_width + j / a.page_size] : b;
    const int64_t token = a.block_table ? j % a.page_size : j;
    for (int64_t h = 0; h < p.kv_heads; ++h) {
      const double* row = at(cache, page, token, h);
      for (int64_t d = 0; d < dim; ++d) rows.push_back(row[d * cache.dim]);
    }
  }
  return rows;
}

}  // namespace

void decode(const Problem& problem, const Decode<double>& a) {
  for (int64_t b = 0; b < problem.batch; ++b) {
    Problem p = problem;
    p.k_length = a.lengths[b];
    const std::vector<double> k = gather(p, a, a.k, b, p.k_length, p.head_dim), v = gather(p, a, a.v, b, p.k_length, p.value_dim);
    Forward<double> f;
    f.q = a.q;
    f.k = {k.data(), 0, p.kv_heads * p.head_dim, p.head_dim, 1};
    f.distance_bias = a.distance_bias;
    f.tau = a.tau;
    f.sink = a.sink;
    f.alibi_slopes = a.alibi_slopes;
    const Sequence s{b, 0, p.q_length, 0, p.k_length};
    for (int64_t head = 0; head < p.heads; ++head) {
      for (int64_t row = 0; row < p.q_length; ++row) {
        const KeyRange keys = visible_keys(p, s, row);
        Weights w;
        w.lse = -std::numeric_limits<double>::infinity();
        if (keys.count() > 0) {
          w = normalize(p.normalizer, row_scores(p, f, s, head, row, keys),
                        row_parameters(p, f, head, offset_count(p, a, b, row, keys.count())));
        }
        double* out = at(a.out, b, row, head);
        for (int64_t d = 0; d < p.value_dim; ++d) out[d * a.out.dim] = 0;
        double sum = 0;
        for (int64_t j = keys.begin; j < keys.end; ++j) {
          const double weight = w.weight[j - keys.begin];
          const double* value = v.data() + (j * p.kv_heads + head / (p.heads / p.kv_heads)) * p.value_dim;
          for (int64_t d = 0; d < p.value_dim; ++d) out[d * a.out.dim] += weight * value[d];
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
    }
  }
}

}  // namespace lazy::kernels::reference
