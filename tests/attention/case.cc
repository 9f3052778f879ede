#include "case.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <sstream>

#include "attention/reference/rows.h"
#include "lazy/visibility.h"

namespace lazy::kernels::test {

std::string Shape::text() const {
  std::ostringstream s;
  s << name(dtype) << ' ' << name(normalizer) << " batch " << batch << " q " << q_length << " k " << k_length
    << " heads " << heads << '/' << kv_heads << " dims " << head_dim << '/' << value_dim
    << (causal ? " causal" : " full") << " window " << window << " bias " << bias_window << " tau " << tau << " sink "
    << sink << " score scale " << score_scale << " softcap " << softcap
    << (offset == Offset::constant ? " constant offset" : "") << (alibi ? " alibi" : "") << " layout "
    << static_cast<int>(layout) << (cu_q.empty() ? "" : " packed")
    << (rounded_sums ? " with row sums of the rounded outputs" : "");
  return s.str();
}

Problem make_problem(const Shape& s) {
  Problem p;
  p.batch = s.batch;
  p.q_length = s.q_length;
  p.k_length = s.k_length;
  p.heads = s.heads;
  p.kv_heads = s.kv_heads;
  p.head_dim = s.head_dim;
  p.value_dim = s.value_dim;
  p.dtype = s.dtype;
  p.scale = 1 / std::sqrt(static_cast<double>(s.head_dim));
  p.softcap = s.softcap;
  p.causal = s.causal;
  p.window = s.window;
  p.normalizer = s.normalizer;
  p.offset = s.offset;
  p.bias_window = s.bias_window;
  p.alibi = s.alibi;
  if (!s.cu_q.empty()) {
    p.cu_seqlens_q = s.cu_q.data();
    p.cu_seqlens_k = s.cu_k.data();
    p.sequences = static_cast<int64_t>(s.cu_q.size()) - 1;
  }
  return p;
}

double liveness_band(double largest_score) { return 0x1p-20 * (4 + largest_score); }

namespace {

template <typename Arguments>
void set_parameters(Arguments& a, const Inputs& inputs) {
  auto pointer = [](const std::vector<double>& x) { return x.empty() ? nullptr : x.data(); };
  a.distance_bias = pointer(inputs.distance_bias);
  a.tau = pointer(inputs.tau);
  a.sink = pointer(inputs.sink);
  a.alibi_slopes = pointer(inputs.alibi_slopes);
}

// Returns whether a score of the row is so near the score at which a weight becomes zero that rounding could decide
// whether the weight is zero. "Near" means within liveness_band. Computed in float64.
bool near_threshold(const Problem& p, const Inputs& inputs, const Sequence& s, int64_t head, int64_t row) {
  const KeyRange keys = visible_keys(p, s, row);
  if (keys.count() == 0) return false;
  Forward<double> a;
  a.q = inputs.q.view();
  a.k = inputs.k.view();
  set_parameters(a, inputs);
  const std::vector<double> scores = reference::row_scores(p, a, s, head, row, keys);
  const reference::RowParameters parameters = reference::row_parameters(p, a, head, keys.count());
  if (keys.count() == 1) {  // without a sink, the probability is exactly 1; with a sink, it is at most 1
    const NormalizerTraits& t = traits(p.normalizer);
    if (!t.takes_tau || !t.takes_sink || parameters.offset <= -1) return false;
  }
  const std::optional<double> threshold = vanishing_score(p.normalizer, scores, parameters);
  if (!threshold) return false;
  double largest = 0;
  for (double score : scores) largest = std::max(largest, std::abs(score));
  return std::any_of(scores.begin(), scores.end(),
                     [&](double score) { return std::abs(score - *threshold) < liveness_band(largest); });
}

}  // namespace

Inputs make_inputs(const Shape& s, uint64_t seed) {
  std::mt19937_64 random(seed);
  std::normal_distribution<double> normal;
  const Problem p = make_problem(s);
  Inputs in;
  in.q = random_tensor(s.batch, s.q_length, s.heads, s.head_dim, s.dtype, s.score_scale, random);
  in.k = random_tensor(s.batch, s.k_length, s.kv_heads, s.head_dim, s.dtype, 1, random);
  in.v = random_tensor(s.batch, s.k_length, s.kv_heads, s.value_dim, s.dtype, 1, random);
  in.d_out = random_tensor(s.batch, s.q_length, s.heads, s.value_dim, s.dtype, 1, random);
  auto parameter = [&](int64_t count, double scale, double shift) {
    std::vector<double> x(count);
    for (double& value : x) value = static_cast<float>(scale * normal(random) + shift);
    return x;
  };
  if (s.bias_window > 0) in.distance_bias = parameter(s.heads * s.bias_window, 0.5, 0);
  if (traits(s.normalizer).takes_tau) in.tau = std::vector<double>(s.heads, s.tau);
  if (traits(s.normalizer).takes_sink) in.sink = parameter(s.heads, 1, s.sink);
  if (s.alibi) in.alibi_slopes = parameter(s.heads, 0.01, 0.1);
  for (int64_t n = 0; n < sequence_count(p); ++n) {
    const Sequence sequence = kernels::sequence(p, n);
    for (int64_t h = 0; h < s.heads; ++h) {
      for (int64_t row = 0; row < sequence.q_length; ++row) {
        for (int attempt = 0; near_threshold(p, in, sequence, h, row); ++attempt) {
          if (attempt == 1000)
            throw std::runtime_error("found no random inputs whose weights are all clearly zero or nonzero: " +
                                     s.text());
          double* q = in.q.row(sequence.batch, sequence.q_begin + row, h);
          for (int64_t d = 0; d < s.head_dim; ++d) q[d] = round_to(s.dtype, s.score_scale * normal(random));
        }
      }
    }
  }
  return in;
}

static Results empty_results(const Shape& s, const Inputs& in, double value) {
  Results r{in.d_out, in.q, in.k, in.v, {}, {}, {}, {}, {}, {}};
  for (Tensor* t : {&r.out, &r.d_q, &r.d_k, &r.d_v}) std::fill(t->data.begin(), t->data.end(), value);
  r.lse.assign(s.batch * s.heads * s.q_length, value);
  r.stats.assign(3 * s.batch * s.heads * s.q_length, value);
  r.score_stats.assign(2 * s.batch * s.heads * s.q_length, value);
  r.d_distance_bias.assign(in.distance_bias.size(), value);
  r.d_tau.assign(in.tau.size(), value);
  r.d_sink.assign(in.sink.size(), value);
  r.d_alibi_slopes.assign(in.alibi_slopes.size(), value);
  return r;
}

Results run_reference(const Shape& s, const Inputs& in) {
  Problem p = make_problem(s);
  p.dtype = DType::f64;
  Results r = empty_results(s, in, std::numeric_limits<double>::quiet_NaN());
  Forward<double> f;
  f.q = in.q.view();
  f.k = in.k.view();
  f.v = in.v.view();
  set_parameters(f, in);
  f.out = r.out.view();
  f.lse = r.lse.data();
  f.stats = r.stats.data();
  f.score_stats = r.score_stats.data();
  reference::forward(p, f);
  Backward<double> b;
  b.q = f.q;
  b.k = f.k;
  b.v = f.v;
  b.d_out = in.d_out.view();
  set_parameters(b, in);
  b.d_q = r.d_q.view();
  b.d_k = r.d_k.view();
  b.d_v = r.d_v.view();
  auto pointer = [](std::vector<double>& x) { return x.empty() ? nullptr : x.data(); };
  b.d_distance_bias = pointer(r.d_distance_bias);
  b.d_tau = pointer(r.d_tau);
  b.d_sink = pointer(r.d_sink);
  b.d_alibi_slopes = pointer(r.d_alibi_slopes);
  reference::backward(p, b);
  return r;
}

}  // namespace lazy::kernels::test
