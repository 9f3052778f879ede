// The second reference: an fp32 version, with simple loops, of the computation of the float64 reference. Only outputs
// are rounded to the dtype; scores, softmax, offset and the decision which weights are zero stay in fp32. The code is
// independent of the float64 reference and of the kernels. The order of every sum is random: fp32 sums have no
// specified order, and the result of a single order may be exact by chance.
#include <algorithm>
#include <cmath>
#include <numeric>

#include "case.h"
#include "lazy/visibility.h"

namespace lazy::kernels::test {

namespace {

struct PlainRow {
  float largest = -std::numeric_limits<float>::infinity(), entropy = 0;  // largest score and entropy of the row
  std::vector<float> weight, d_score;
  std::vector<float> slope;  // derivative of the capped score with respect to scale * (q . k); 1 without a softcap
  std::vector<float> p, g;   // probabilities of the exponential family; gradients of the weights, zero for zero weights
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
    if (e != 0) weighted += e * (x - row.largest);  // skip 0 * -inf, which is NaN
  }
  row.entropy = std::log(sum) - weighted / sum;
}

void softmax_like(const std::vector<float>& s, const std::vector<float>& dw, Normalizer normalizer, float offset,
                  float sink, PlainRow& row) {
  const bool has_sink = traits(normalizer).takes_sink, elastic = traits(normalizer).takes_tau;
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

// Computes the threshold in fp64 from the fp32 scores, and everything else in fp32. The kernels may search for the
// threshold in any way, so this function cannot imitate the rounding of their search.
void sparse_row(const std::vector<float>& s, const std::vector<float>& dw, bool entmax, PlainRow& row) {
  std::vector<double> scores(s.begin(), s.end());
  const double largest = *std::max_element(scores.begin(), scores.end());
  double lo = largest - (entmax ? 2 : 1), hi = largest;
  for (int n = 0; n < 100; ++n) {
    const double middle = (lo + hi) / 2;
    double sum = 0;
    for (double x : scores) {
      const double z = std::max(entmax ? (x - middle) / 2 : x - middle, 0.0);
      sum += entmax ? z * z : z;
    }
    (sum > 1 ? lo : hi) = middle;
    // Remove the scores whose weights are zero for every threshold that is still possible, that is, for every threshold
    // of at least `lo`.
    if (sum > 1) std::erase_if(scores, [&](double x) { return x <= lo; });
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

// The values of a tensor, stored in the order (batch, tokens, heads, dim).
struct Rows {
  int64_t tokens, heads, dim;
  std::vector<float> data;
  explicit Rows(const Tensor& t) : tokens(t.tokens), heads(t.heads), dim(t.dim), data(t.data.begin(), t.data.end()) {}
  const float* row(int64_t b, int64_t t, int64_t h) const { return data.data() + ((b * tokens + t) * heads + h) * dim; }
  float* row(int64_t b, int64_t t, int64_t h) { return data.data() + ((b * tokens + t) * heads + h) * dim; }
};

// The values of a tensor, stored in the order (batch, heads, dim, tokens), so that a product with many keys is a loop
// over contiguous memory.
struct Columns {
  int64_t tokens, heads, dim;
  std::vector<float> data;
  explicit Columns(const Tensor& t) : tokens(t.tokens), heads(t.heads), dim(t.dim), data(t.data.size()) {
    for (int64_t b = 0; b < t.batch; ++b) {
      for (int64_t n = 0; n < tokens; ++n) {
        for (int64_t h = 0; h < heads; ++h) {
          for (int64_t d = 0; d < dim; ++d) data[index(b, h, d) + n] = static_cast<float>(t.row(b, n, h)[d]);
        }
      }
    }
  }
  int64_t index(int64_t b, int64_t h, int64_t d) const { return ((b * heads + h) * dim + d) * tokens; }
  const float* column(int64_t b, int64_t h, int64_t d) const { return data.data() + index(b, h, d); }
};

struct PlainInputs {
  Rows q, k, v, d_out;
  Columns k_columns, v_columns;
  explicit PlainInputs(const Inputs& in)
      : q(in.q), k(in.k), v(in.v), d_out(in.d_out), k_columns(in.k), v_columns(in.v) {}
};

void add_product(float factor, const float* __restrict x, int64_t count, float* __restrict sums) {
  for (int64_t n = 0; n < count; ++n) sums[n] += factor * x[n];
}

struct Plain {
  const Shape& shape;
  const Inputs& in;
  const PlainInputs& x;
  Problem p;
  bool gradients;
  Results& r;
  std::mt19937_64 random;
  Rows out{r.out}, d_q{r.d_q}, d_k{r.d_k}, d_v{r.d_v};  // sums are computed in fp32
  std::vector<int64_t> order(int64_t begin, int64_t end) {
    std::vector<int64_t> n(end - begin);
    std::iota(n.begin(), n.end(), begin);
    std::shuffle(n.begin(), n.end(), random);
    return n;
  }
  std::vector<int64_t> head_dims = order(0, shape.head_dim), value_dims = order(0, shape.value_dim);

  // Returns the dot products of a query row with all keys that are visible to the row.
  std::vector<float> dots(const float* row, const Columns& columns, const std::vector<int64_t>& dims, const Sequence& s,
                          int64_t kv, const KeyRange& keys) {
    std::vector<float> sums(keys.count(), 0.0f);
    for (int64_t d : dims) {
      add_product(row[d], columns.column(s.batch, kv, d) + s.k_begin + keys.begin, keys.count(), sums.data());
    }
    return sums;
  }

  void row(const Sequence& s, int64_t h, int64_t i) {
    const KeyRange keys = visible_keys(p, s, i);
    const int64_t kv = h / (p.heads / p.kv_heads), index = (s.batch * p.heads + h) * p.q_length + s.q_begin + i;
    const auto dot = dots(x.q.row(s.batch, s.q_begin + i, h), x.k_columns, head_dims, s, kv, keys);
    const auto d_weight = dots(x.d_out.row(s.batch, s.q_begin + i, h), x.v_columns, value_dims, s, kv, keys);
    std::vector<float> scores, dw;
    PlainRow row;
    const std::vector<int64_t> key_order = order(keys.begin, keys.end);
    size_t first = 0;
    for (int64_t j : key_order) {
      if (j == 0) first = scores.size();
      const int64_t distance = std::abs(position(s, i) - j);
      float score = static_cast<float>(p.scale) * dot[j - keys.begin], slope = 1;
      if (p.softcap > 0) {
        const float softcap = static_cast<float>(p.softcap), inverse = 1 / std::cosh(score / softcap);
        score = softcap * std::tanh(score / softcap);
        slope = inverse * inverse;
      }
      row.slope.push_back(slope);
      if (distance < p.bias_window) score += static_cast<float>(in.distance_bias[h * p.bias_window + distance]);
      if (p.alibi) score -= static_cast<float>(in.alibi_slopes[h]) * static_cast<float>(distance);
      scores.push_back(score);
      dw.push_back(d_weight[j - keys.begin]);
    }
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
        case Normalizer::elastic_sink:
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

  // Computes the score gradients of the row from rounded sums, as the kernel does. For d_score = p (g - center), center
  // is d_out . out - offset * e, where e = d_out . alive_sum and alive_sum is the sum of the rows of V with nonzero
  // weight. A row that sees only one key and no sink has zero score gradients.
  void use_rounded_sums(const Sequence& s, int64_t h, int64_t i, int64_t kv, const std::vector<int64_t>& keys,
                        PlainRow& row, float per) {
    const float* gradient = x.d_out.row(s.batch, s.q_begin + i, h);
    float of_out = 0, e = 0;
    for (int64_t d : value_dims) {
      float sum = 0, alive_sum = 0;
      for (size_t n = 0; n < keys.size(); ++n) {
        const float value = x.v.row(s.batch, s.k_begin + keys[n], kv)[d];
        sum += static_cast<float>(round_to(shape.dtype, row.weight[n])) * value;
        if (row.weight[n] > 0) alive_sum += value;
      }
      of_out += static_cast<float>(round_to(shape.dtype, sum) * gradient[d]);
      e += static_cast<float>(round_to(shape.dtype, alive_sum) * gradient[d]);
    }
    const float center = of_out - static_cast<float>(in.tau[h]) * per * e;
    const bool alone = keys.size() == 1 && in.sink.empty();
    for (size_t n = 0; n < keys.size(); ++n) row.d_score[n] = alone ? 0 : row.p[n] * (row.g[n] - center);
    row.d_offset = e;
    if (!in.sink.empty()) row.d_sink = -std::exp(static_cast<float>(in.sink[h]) - row.lse) * center;
  }

  void add(const Sequence& s, int64_t h, int64_t i, int64_t kv, const std::vector<int64_t>& keys, const PlainRow& row,
           float per) {
    const int64_t at = s.q_begin + i;
    const float scale = static_cast<float>(p.scale);
    auto plus = [](double& sum, float x) { sum = static_cast<float>(sum) + x; };
    for (size_t n = 0; n < keys.size(); ++n) {
      const int64_t j = keys[n];
      const float weight = row.weight[n], ds = row.d_score[n], d_product = scale * (row.slope[n] * ds);
      const int64_t key = s.k_begin + j;
      add_product(weight, x.v.row(s.batch, key, kv), p.value_dim, out.row(s.batch, at, h));
      if (!gradients) continue;
      add_product(weight, x.d_out.row(s.batch, at, h), p.value_dim, d_v.row(s.batch, key, kv));
      add_product(d_product, x.k.row(s.batch, key, kv), p.head_dim, d_q.row(s.batch, at, h));
      add_product(d_product, x.q.row(s.batch, at, h), p.head_dim, d_k.row(s.batch, key, kv));
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
    case Normalizer::elastic_sink:
      if (parameters.offset >= 0) return std::nullopt;
      return reference::normalize(normalizer, scores, parameters).lse + std::log(-parameters.offset);
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

std::vector<Results> run_plain(const Shape& shape, const Inputs& in, uint64_t seed, int orders, bool gradients) {
  const PlainInputs inputs(in);
  std::vector<Results> all;
  for (int n = 0; n < orders; ++n) {
    Results& r = all.emplace_back();
    r.out = Tensor(in.q.batch, in.q.tokens, in.q.heads, in.v.dim);
    r.lse.assign(shape.batch * shape.heads * shape.q_length, 0);
    r.stats.assign(3 * r.lse.size(), 0);
    r.score_stats.assign(2 * r.lse.size(), 0);
    if (gradients) {
      for (auto [gradient, of] : {std::pair{&r.d_q, &in.q}, {&r.d_k, &in.k}, {&r.d_v, &in.v}})
        *gradient = Tensor(of->batch, of->tokens, of->heads, of->dim);
      r.d_distance_bias.assign(in.distance_bias.size(), 0);
      r.d_tau.assign(in.tau.size(), 0);
      r.d_sink.assign(in.sink.size(), 0);
      r.d_alibi_slopes.assign(in.alibi_slopes.size(), 0);
    }
    Plain plain{shape, in, inputs, make_problem(shape), gradients, r, std::mt19937_64(seed + n)};
    for (int64_t m = 0; m < sequence_count(plain.p); ++m) {
      const Sequence s = sequence(plain.p, m);
      for (int64_t h : plain.order(0, shape.heads)) {
        for (int64_t i : plain.order(0, s.q_length)) plain.row(s, h, i);
      }
    }
    using Pair = std::pair<const Rows*, Tensor*>;
    for (auto [sums, to] : {Pair{&plain.out, &r.out}, {&plain.d_q, &r.d_q}, {&plain.d_k, &r.d_k}, {&plain.d_v, &r.d_v}})
      std::transform(sums->data.begin(), sums->data.end(), to->data.begin(),
                     [&](float sum) { return round_to(shape.dtype, sum); });
  }
  return all;
}

}  // namespace lazy::kernels::test
