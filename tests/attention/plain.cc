// The second reference: the same computation in fp32 by plain loops, outputs rounded to the dtype at the end. Scores,
// softmax, offset and liveness stay in fp32. Written apart from both the reference and the kernels. The order of every
// sum is drawn at random: fp32 leaves it open, and one order alone may be exact by luck.
#include <algorithm>
#include <cmath>
#include <numeric>

#include "case.h"
#include "lazy/visibility.h"

namespace lazy::kernels::test {

namespace {

struct PlainRow {
  float largest = -std::numeric_limits<float>::infinity(), entropy = 0;  // of the scores
  std::vector<float> weight, d_score;
  std::vector<float> p, g;  // elastic
  float lse = -std::numeric_limits<float>::infinity(), d_offset = 0, d_sink = 0;
  int64_t alive = 0;
};

float sum_of(const std::vector<float>& x) {
  float sum = 0;
  for (float value : x) sum += value;
  return sum;
}

void score_statistics(const std::vector<float>& s, PlainRow& row) {
  row.largest = *std::max_element(s.begin(), s.end());
  float sum = 0, weighted = 0;
  for (float x : s) {
    const float e = std::exp(x - row.largest);
    sum += e;
    if (e != 0) weighted += e * (x - row.largest);  // 0 * -inf is no part of it
  }
  row.entropy = std::log(sum) - weighted / sum;
}

void softmax_like(const std::vector<float>& s, const std::vector<float>& dw, Normalizer normalizer, float offset,
                  float sink, PlainRow& row) {
  const bool has_sink = normalizer == Normalizer::softmax_sink, elastic = normalizer == Normalizer::elastic;
  float largest = *std::max_element(s.begin(), s.end());
  if (has_sink) largest = std::max(largest, sink);
  std::vector<float> p;
  for (float x : s) p.push_back(std::exp(x - largest));
  const float sum = sum_of(p) + (has_sink ? std::exp(sink - largest) : 0.0f);
  row.lse = largest + std::log(sum);
  std::vector<float> g, pg;
  for (size_t j = 0; j < s.size(); ++j) {
    p[j] /= sum;
    const float z = elastic ? p[j] + offset : p[j];
    const bool alive = !elastic || offset >= 0 || z > 0;
    row.alive += alive;
    row.weight.push_back(alive ? z : 0);
    g.push_back(alive ? dw[j] : 0);
    pg.push_back(p[j] * g[j]);
  }
  const float delta = sum_of(pg);
  for (size_t j = 0; j < s.size(); ++j) row.d_score.push_back(p[j] * (g[j] - delta));
  row.d_offset = sum_of(g);
  row.p = p;
  row.g = g;
  if (has_sink) row.d_sink = -std::exp(sink - row.lse) * delta;
}

void sigmoid_row(const std::vector<float>& s, const std::vector<float>& dw, PlainRow& row) {
  const float beta = -std::log(static_cast<float>(s.size()));
  for (size_t j = 0; j < s.size(); ++j) {
    const float w = 1 / (1 + std::exp(-(s[j] + beta)));
    row.weight.push_back(w);
    row.d_score.push_back(w * (1 - w) * dw[j]);
  }
  row.alive = static_cast<int64_t>(s.size());
}

// The threshold in fp64 from the fp32 scores, then fp32: sorting has no rounding to imitate.
void sparse_row(const std::vector<float>& s, const std::vector<float>& dw, bool entmax, PlainRow& row) {
  std::vector<double> sorted(s.begin(), s.end());
  const double largest = *std::max_element(sorted.begin(), sorted.end());
  double lo = largest - (entmax ? 2 : 1), hi = largest;
  for (int n = 0; n < 100; ++n) {
    const double middle = (lo + hi) / 2;
    double sum = 0;
    for (double x : sorted) {
      const double z = std::max(entmax ? (x - middle) / 2 : x - middle, 0.0);
      sum += entmax ? z * z : z;
    }
    (sum > 1 ? lo : hi) = middle;
  }
  const float theta = static_cast<float>(lo);
  row.lse = entmax ? theta / 2 : theta;
  float weights = 0, weighted = 0;
  std::vector<float> root;
  for (size_t j = 0; j < s.size(); ++j) {
    const float z = std::max(entmax ? (s[j] - theta) / 2 : s[j] - theta, 0.0f);
    row.weight.push_back(entmax ? z * z : z);
    root.push_back(entmax ? z : (z > 0 ? 1.0f : 0.0f));
    row.alive += z > 0;
    weights += root[j];
    weighted += root[j] * dw[j];
  }
  for (size_t j = 0; j < s.size(); ++j) row.d_score.push_back(root[j] * (dw[j] - weighted / weights));
}

void softpick_row(const std::vector<float>& s, const std::vector<float>& dw, PlainRow& row) {
  const float m = std::max(0.0f, *std::max_element(s.begin(), s.end())), unit = std::exp(-m);
  std::vector<float> excess, size, weighted;
  for (float x : s) {
    excess.push_back(std::exp(x - m) - unit);
    size.push_back(std::abs(excess.back()));
  }
  const float sum = sum_of(size) + static_cast<float>(kSoftpickEpsilon);
  row.lse = m + std::log(sum);
  for (size_t j = 0; j < s.size(); ++j) {
    const bool alive = s[j] > 0;
    row.weight.push_back(alive ? std::max(excess[j], 0.0f) / sum : 0);
    row.alive += alive;
    weighted.push_back(row.weight[j] * dw[j]);
  }
  const float delta = sum_of(weighted);
  for (size_t j = 0; j < s.size(); ++j) {
    const float p = std::exp(s[j] - m) / sum;
    row.d_score.push_back(s[j] > 0 ? p * (dw[j] - delta) : s[j] < 0 ? p * delta : 0);
  }
}

struct Plain {
  const Shape& shape;
  const Inputs& in;
  Problem p;
  Results& r;
  std::mt19937_64 random;
  std::vector<int64_t> order(int64_t begin, int64_t end) {
    std::vector<int64_t> n(end - begin);
    std::iota(n.begin(), n.end(), begin);
    std::shuffle(n.begin(), n.end(), random);
    return n;
  }
  std::vector<int64_t> head_dims, value_dims;

  void row(const Sequence& s, int64_t h, int64_t i) {
    const KeyRange keys = visible_keys(p, s, i);
    const int64_t kv = h / (p.heads / p.kv_heads), index = (s.batch * p.heads + h) * p.q_length + s.q_begin + i;
    const double* q = in.q.row(s.batch, s.q_begin + i, h);
    const double* d_out = in.d_out.row(s.batch, s.q_begin + i, h);
    std::vector<float> scores, dw;
    const std::vector<int64_t> key_order = order(keys.begin, keys.end);
    size_t first = 0;
    for (int64_t j : key_order) {
      if (j == 0) first = scores.size();
      const double* k = in.k.row(s.batch, s.k_begin + j, kv);
      const double* v = in.v.row(s.batch, s.k_begin + j, kv);
      float dot = 0, d_weight = 0;
      for (int64_t d : head_dims) dot += static_cast<float>(q[d]) * static_cast<float>(k[d]);
      for (int64_t d : value_dims) d_weight += static_cast<float>(d_out[d]) * static_cast<float>(v[d]);
      const int64_t distance = std::abs(position(s, i) - j);
      float score = static_cast<float>(p.scale) * dot;
      if (distance < p.bias_window) score += static_cast<float>(in.distance_bias[h * p.bias_window + distance]);
      if (p.alibi) score -= static_cast<float>(in.alibi_slopes[h]) * static_cast<float>(distance);
      scores.push_back(score);
      dw.push_back(d_weight);
    }
    PlainRow row;
    const float count = static_cast<float>(keys.count());
    const float per = p.offset == Offset::per_visible ? 1 / count : 1;
    if (!scores.empty()) {
      score_statistics(scores, row);
      switch (p.normalizer) {
        case Normalizer::sigmoid:
          sigmoid_row(scores, dw, row);
          break;
        case Normalizer::sparsemax:
          sparse_row(scores, dw, false, row);
          break;
        case Normalizer::entmax15:
          sparse_row(scores, dw, true, row);
          break;
        case Normalizer::softpick:
          softpick_row(scores, dw, row);
          break;
        case Normalizer::softmax:
        case Normalizer::elastic:
        case Normalizer::softmax_sink:
          softmax_like(scores, dw, p.normalizer, in.tau.empty() ? 0 : static_cast<float>(in.tau[h]) * per,
                       in.sink.empty() ? 0 : static_cast<float>(in.sink[h]), row);
      }
    }
    if (shape.rounded_sums && !scores.empty()) use_rounded_sums(s, h, i, kv, key_order, row, per);
    r.lse[index] = row.lse;
    const int64_t part = p.batch * p.heads * p.q_length;
    r.stats[index] = keys.count() > 0 && keys.begin == 0 ? row.weight[first] : 0;
    r.stats[part + index] = 1 - sum_of(row.weight);
    r.stats[2 * part + index] = static_cast<double>(row.alive);
    r.score_stats[index] = row.largest;
    r.score_stats[part + index] = row.entropy;
    add(s, h, i, kv, key_order, row, per);
  }

  // center = d_out . out - offset e, e = d_out . alive_sum. A row's only key has no gradient whatever its score.
  void use_rounded_sums(const Sequence& s, int64_t h, int64_t i, int64_t kv, const std::vector<int64_t>& keys,
                        PlainRow& row, float per) {
    const double* d_out = in.d_out.row(s.batch, s.q_begin + i, h);
    float of_out = 0, e = 0;
    for (int64_t d : value_dims) {
      float out = 0, alive_sum = 0;
      for (size_t n = 0; n < keys.size(); ++n) {
        const float v = static_cast<float>(in.v.row(s.batch, s.k_begin + keys[n], kv)[d]);
        out += static_cast<float>(round_to(shape.dtype, row.weight[n])) * v;
        if (row.weight[n] > 0) alive_sum += v;
      }
      of_out += static_cast<float>(round_to(shape.dtype, out) * d_out[d]);
      e += static_cast<float>(round_to(shape.dtype, alive_sum) * d_out[d]);
    }
    const float center = of_out - static_cast<float>(in.tau[h]) * per * e;
    for (size_t n = 0; n < keys.size(); ++n) row.d_score[n] = keys.size() == 1 ? 0 : row.p[n] * (row.g[n] - center);
    row.d_offset = e;
  }

  void add(const Sequence& s, int64_t h, int64_t i, int64_t kv, const std::vector<int64_t>& keys, const PlainRow& row,
           float per) {
    const double* q = in.q.row(s.batch, s.q_begin + i, h);
    const double* d_out = in.d_out.row(s.batch, s.q_begin + i, h);
    double* out = r.out.row(s.batch, s.q_begin + i, h);
    double* d_q = r.d_q.row(s.batch, s.q_begin + i, h);
    const float scale = static_cast<float>(p.scale);
    auto plus = [](double& sum, float x) { sum = static_cast<float>(sum) + x; };
    for (size_t n = 0; n < keys.size(); ++n) {
      const int64_t j = keys[n];
      const float weight = row.weight[n], ds = row.d_score[n];
      const double* k = in.k.row(s.batch, s.k_begin + j, kv);
      const double* v = in.v.row(s.batch, s.k_begin + j, kv);
      double* d_k = r.d_k.row(s.batch, s.k_begin + j, kv);
      double* d_v = r.d_v.row(s.batch, s.k_begin + j, kv);
      for (int64_t d = 0; d < p.value_dim; ++d) {
        plus(out[d], weight * static_cast<float>(v[d]));
        plus(d_v[d], weight * static_cast<float>(d_out[d]));
      }
      for (int64_t d = 0; d < p.head_dim; ++d) {
        plus(d_q[d], scale * ds * static_cast<float>(k[d]));
        plus(d_k[d], scale * ds * static_cast<float>(q[d]));
      }
      const int64_t distance = std::abs(position(s, i) - j);
      if (distance < p.bias_window) {
        const double of_bias = shape.rounded_sums ? round_to(shape.dtype, ds) : ds;
        plus(r.d_distance_bias[h * p.bias_window + distance], static_cast<float>(of_bias));
      }
      if (p.alibi) plus(r.d_alibi_slopes[h], -ds * static_cast<float>(distance));
    }
    if (!r.d_tau.empty() && !keys.empty()) plus(r.d_tau[h], row.d_offset * per);
    if (!r.d_sink.empty()) plus(r.d_sink[h], row.d_sink);
  }
};

}  // namespace

std::optional<double> vanishing_score(Normalizer normalizer, const std::vector<double>& scores,
                                      const reference::RowParameters& parameters) {
  switch (normalizer) {
    case Normalizer::elastic:
      if (parameters.offset >= 0) return std::nullopt;
      return reference::normalize(Normalizer::softmax, scores, parameters).lse + std::log(-parameters.offset);
    case Normalizer::sparsemax:
      return reference::normalize(normalizer, scores, parameters).lse;
    case Normalizer::entmax15:
      return 2 * reference::normalize(normalizer, scores, parameters).lse;
    case Normalizer::softpick:
      return 0;
    case Normalizer::softmax:
    case Normalizer::sigmoid:
    case Normalizer::softmax_sink:
      return std::nullopt;
  }
  throw std::invalid_argument(unknown_normalizer(normalizer));
}

Results run_plain(const Shape& shape, const Inputs& in, uint64_t seed) {
  Results r{in.d_out, in.q, in.k, in.v, {}, {}, {}, {}, {}, {}};
  for (Tensor* t : {&r.out, &r.d_q, &r.d_k, &r.d_v}) std::fill(t->data.begin(), t->data.end(), 0.0);
  r.lse.assign(shape.batch * shape.heads * shape.q_length, 0);
  r.stats.assign(3 * r.lse.size(), 0);
  r.score_stats.assign(2 * r.lse.size(), 0);
  r.d_distance_bias.assign(in.distance_bias.size(), 0);
  r.d_tau.assign(in.tau.size(), 0);
  r.d_sink.assign(in.sink.size(), 0);
  r.d_alibi_slopes.assign(in.alibi_slopes.size(), 0);
  Plain plain{shape, in, make_problem(shape), r, std::mt19937_64(seed), {}, {}};
  plain.head_dims = plain.order(0, shape.head_dim);
  plain.value_dims = plain.order(0, shape.value_dim);
  for (int64_t n = 0; n < sequence_count(plain.p); ++n) {
    const Sequence s = sequence(plain.p, n);
    for (int64_t h : plain.order(0, shape.heads)) {
      for (int64_t i : plain.order(0, s.q_length)) plain.row(s, h, i);
    }
  }
  for (Tensor* t : {&r.out, &r.d_q, &r.d_k, &r.d_v}) {
    for (double& x : t->data) x = round_to(shape.dtype, x);
  }
  return r;
}

}  // namespace lazy::kernels::test
