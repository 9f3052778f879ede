// Decoding by definition: the cache of one sequence is gathered from its pages, then every row is the forward's.
#include "lazy/decode.h"

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
    const std::vector<double> k = gather(p, a, a.k, b, p.k_length, p.head_dim),
                              v = gather(p, a, a.v, b, p.k_length, p.value_dim);
    Forward<double> f;
    f.q = a.q;
    f.k = {k.data(), 0, p.kv_heads * p.head_dim, p.head_dim, 1};
    f.v = {v.data(), 0, p.kv_heads * p.value_dim, p.value_dim, 1};
    f.distance_bias = a.distance_bias;
    f.tau = a.tau;
    f.sink = a.sink;
    f.alibi_slopes = a.alibi_slopes;
    f.out = a.out;
    f.lse = a.lse;
    f.stats = a.stats;
    const Sequence s{b, 0, p.q_length, 0, p.k_length};
    for (int64_t head = 0; head < p.heads; ++head) {
      for (int64_t row = 0; row < p.q_length; ++row) {
        forward_row(p, f, s, head, row, offset_count(p, a, b, row, visible_keys(p, s, row).count()));
      }
    }
  }
}

}  // namespace lazy::kernels::reference
