// Reference implementation of attention and decoding in float64 with simple loops. It supports all normalizers and
// layouts, and it defines the results of the operators.
#include <algorithm>
#include <limits>

#include "attention/reference/rows.h"
#include "lazy/decode.h"

namespace lazy::kernels::reference {

// Computes one row of the output, its lse and its statistics. `count` is the number of visible keys from which
// elastic's offset and the sigmoid bias are computed (see row_parameters); it is unused if the row does not see any
// key.
static void forward_row(const Problem& p, const Forward<double>& a, const Sequence& s, int64_t head, int64_t row,
                        int64_t count) {
  const KeyRange keys = visible_keys(p, s, row);
  Weights w;
  w.lse = -std::numeric_limits<double>::infinity();
  ScoreStatistics of_scores{w.lse, 0};
  if (keys.count() > 0) {
    const std::vector<double> scores = row_scores(p, a, s, head, row, keys);
    w = normalize(p.normalizer, scores, row_parameters(p, a, head, count));
    of_scores = score_statistics(scores);
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
  if (a.score_stats) {
    a.score_stats[index] = of_scores.largest;
    a.score_stats[part + index] = of_scores.entropy;
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

static void backward_row(const Problem& p, const Backward<double>& a, const Sequence& s, int64_t head, int64_t row) {
  const KeyRange keys = visible_keys(p, s, row);
  if (keys.count() == 0) return;
  const int64_t kv_head = head / (p.heads / p.kv_heads);
  const double* q = at(a.q, s.batch, s.q_begin + row, head);
  const double* d_out = at(a.d_out, s.batch, s.q_begin + row, head);
  std::vector<double> slopes;
  const std::vector<double> scores = row_scores(p, a, s, head, row, keys, &slopes);
  const RowParameters parameters = row_parameters(p, a, head, keys.count());
  const Weights w = normalize(p.normalizer, scores, parameters);
  std::vector<double> d_weight;
  for (int64_t j = keys.begin; j < keys.end; ++j) {
    const double* v = at(a.v, s.batch, s.k_begin + j, kv_head);
    double dot = 0;
    for (int64_t d = 0; d < p.value_dim; ++d) dot += d_out[d * a.d_out.dim] * v[d * a.v.dim];
    d_weight.push_back(dot);
  }
  const RowGradient gradient = normalize_backward(p.normalizer, scores, parameters, d_weight);
  for (int64_t j = keys.begin; j < keys.end; ++j) {
    const double d_score = gradient.d_score[j - keys.begin], weight = w.weight[j - keys.begin];
    const double d_product = p.scale * slopes[j - keys.begin] * d_score;  // gradient of q . k
    const double* k = at(a.k, s.batch, s.k_begin + j, kv_head);
    const int64_t distance = std::abs(position(s, row) - j);
    if (a.d_q.data) {
      double* d_q = at(a.d_q, s.batch, s.q_begin + row, head);
      for (int64_t d = 0; d < p.head_dim; ++d) d_q[d * a.d_q.dim] += d_product * k[d * a.k.dim];
    }
    if (a.d_k.data) {
      double* d_k = at(a.d_k, s.batch, s.k_begin + j, kv_head);
      for (int64_t d = 0; d < p.head_dim; ++d) d_k[d * a.d_k.dim] += d_product * q[d * a.q.dim];
    }
    if (a.d_v.data) {
      double* d_v = at(a.d_v, s.batch, s.k_begin + j, kv_head);
      for (int64_t d = 0; d < p.value_dim; ++d) d_v[d * a.d_v.dim] += weight * d_out[d * a.d_out.dim];
    }
    if (a.d_distance_bias && distance < p.bias_window) {
      a.d_distance_bias[head * p.bias_window + distance] += d_score;
    }
    if (a.d_alibi_slopes) a.d_alibi_slopes[head] -= d_score * static_cast<double>(distance);
  }
  if (a.d_tau) a.d_tau[head] += gradient.d_offset * parameters.offset_scale;
  if (a.d_sink) a.d_sink[head] += gradient.d_sink;
}

static void clear(const View& view, int64_t batch, int64_t tokens, int64_t heads, int64_t dim) {
  if (!view.data) return;
  for (int64_t b = 0; b < batch; ++b) {
    for (int64_t t = 0; t < tokens; ++t) {
      for (int64_t h = 0; h < heads; ++h) {
        double* row = at(view, b, t, h);
        for (int64_t d = 0; d < dim; ++d) row[d * view.dim] = 0;
      }
    }
  }
}

void backward(const Problem& p, const Backward<double>& a) {
  clear(a.d_q, p.batch, p.q_length, p.heads, p.head_dim);
  clear(a.d_k, p.batch, p.k_length, p.kv_heads, p.head_dim);
  clear(a.d_v, p.batch, p.k_length, p.kv_heads, p.value_dim);
  if (a.d_distance_bias) std::fill_n(a.d_distance_bias, p.heads * p.bias_window, 0.0);
  if (a.d_tau) std::fill_n(a.d_tau, p.heads, 0.0);
  if (a.d_sink) std::fill_n(a.d_sink, p.heads, 0.0);
  if (a.d_alibi_slopes) std::fill_n(a.d_alibi_slopes, p.heads, 0.0);
  for (int64_t n = 0; n < sequence_count(p); ++n) {
    const Sequence s = sequence(p, n);
    for (int64_t head = 0; head < p.heads; ++head) {
      for (int64_t row = 0; row < s.q_length; ++row) backward_row(p, a, s, head, row);
    }
  }
}

// Decoding. The keys and values of a sequence are gathered from the pages of its cache, and then forward_row computes
// every row.

// Returns the gathered rows as a contiguous array (keys, kv_heads, dim).
static std::vector<double> gather(const Problem& p, const Decode<double>& a, const ConstView& cache, int64_t b,
                                  int64_t keys, int64_t dim) {
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
    f.score_stats = a.score_stats;
    const Sequence s{b, 0, p.q_length, 0, p.k_length};
    for (int64_t head = 0; head < p.heads; ++head) {
      for (int64_t row = 0; row < p.q_length; ++row) {
        forward_row(p, f, s, head, row, offset_count(p, a, b, row, visible_keys(p, s, row).count()));
      }
    }
  }
}

}  // namespace lazy::kernels::reference
