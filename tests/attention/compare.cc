#include <gtest/gtest.h>

#include <algorithm>

#include "case.h"

namespace lazy::kernels::test {

namespace {

using Values = std::vector<double>;

// Two errors of a tensor, both relative to the reference. largest: largest absolute difference divided by the
// reference's largest absolute value. mean_square: mean squared difference divided by the reference's mean square.
struct Errors {
  double largest = 0, mean_square = 0;
};

Errors errors(const Values& reference, const Values& x) {
  // Reference values below 2^-100 are treated as underflow.
  double largest = 0x1p-100, mean_square = 0x1p-200, difference = 0, differences = 0;
  for (size_t n = 0; n < x.size(); ++n) {
    if (reference[n] == x[n]) continue;  // skips exact results, including equal infinities
    const double d = std::abs(reference[n] - x[n]);
    if (!(d <= difference)) difference = d;  // written with `!` so that a NaN is recorded too
    differences += d * d / static_cast<double>(x.size());
  }
  for (double r : reference) {
    if (!std::isfinite(r)) continue;
    largest = std::max(largest, std::abs(r));
    mean_square += r * r / static_cast<double>(x.size());
  }
  return {difference / largest, differences / mean_square};
}

bool has_gradients(const Results& r) {
  return !(r.d_q.data.empty() && r.d_k.data.empty() && r.d_v.data.empty() && r.d_distance_bias.empty() &&
           r.d_tau.empty() && r.d_sink.empty() && r.d_alibi_slopes.empty());
}

Values part_of(const Values& stats, size_t n, size_t parts = 3) {
  const size_t part = stats.size() / parts;
  return Values(stats.begin() + n * part, stats.begin() + (n + 1) * part);
}

}  // namespace

void TwoReferences::add(const Shape& s, const Inputs& in, const Results& fast) {
  const Results reference = run_reference(s, in);
  // `plain` adds the terms of each sum in a random order. If only a small number of rows have weights between zero and
  // one, the error of one order may be small by chance. The error is then measured over more orders.
  // The gradient of the sinks has only one value per head, so its error in a single order says little, too.
  const int orders = s.q_length <= 2 || s.window == 1 || s.window == 2                   ? 64
                     : s.q_length <= 111 && s.score_scale > 1                            ? 16
                     : traits(s.normalizer).takes_sink && traits(s.normalizer).takes_tau ? 16
                                                                                         : 4;
  const std::vector<Results> plain = run_plain(s, in, cases_, orders, has_gradients(fast));
  cases_ += orders;
  const double cuts = tensor_cores_ ? static_cast<double>(s.head_dim) / 16 : 0;
  auto one = [&](const char* what, DType type, auto&& values) {
    const Values r = values(reference), f = values(fast);
    if (r.empty() || f.empty()) return;
    ASSERT_EQ(r.size(), f.size()) << what;
    const Errors found = errors(r, f);
    ASSERT_FALSE(std::isnan(found.mean_square)) << what << " contains NaN: " << s.text();
    Pool& pool = pools_[{what, s.score_scale}];
    pool.rounding = std::max(unit_roundoff(type), (1 + cuts) * unit_roundoff(DType::f32));
    ++pool.cases;
    double mean_square = 0;
    for (const Results& other : plain) {
      const Errors expected = errors(r, values(other));
      pool.expected_largest = std::max(pool.expected_largest, expected.largest);
      mean_square = std::max(mean_square, expected.mean_square);
    }
    pool.expected_mean_square += mean_square;
    pool.found_mean_square += found.mean_square;
    if (found.largest >= pool.found_largest) {
      pool.found_largest = found.largest;
      pool.worst = s.text();
    }
  };
  one("out", s.dtype, [](const Results& r) { return r.out.data; });
  one("d_q", s.dtype, [](const Results& r) { return r.d_q.data; });
  one("d_k", s.dtype, [](const Results& r) { return r.d_k.data; });
  one("d_v", s.dtype, [](const Results& r) { return r.d_v.data; });
  if (traits(s.normalizer).has_lse) one("lse", DType::f32, [](const Results& r) { return r.lse; });
  one("d_distance_bias", DType::f32, [](const Results& r) { return r.d_distance_bias; });
  one("d_tau", DType::f32, [](const Results& r) { return r.d_tau; });
  one("d_sink", DType::f32, [](const Results& r) { return r.d_sink; });
  one("d_alibi_slopes", DType::f32, [](const Results& r) { return r.d_alibi_slopes; });
  // Sparsemax and entmax compute a weight as a score minus a threshold. The rounding error of this difference is as
  // large as for numbers near one, even if the weight is small.
  const bool threshold = traits(s.normalizer).family == NormalizerFamily::threshold;
  one("weight on the first key", DType::f32, [&](const Results& r) {
    Values weight = part_of(r.stats, 0);
    for (double& x : weight) x = threshold ? 1 - x : x;
    return weight;
  });
  one("mass", DType::f32, [](const Results& r) {
    // stats contains 1 - (sum of weights), which is rounded like a number near one
    Values mass = part_of(r.stats, 1);
    for (double& x : mass) x = 1 - x;
    return mass;
  });
  one("largest score", DType::f32, [](const Results& r) { return part_of(r.score_stats, 0, 2); });
  one("entropy", DType::f32, [](const Results& r) { return part_of(r.score_stats, 1, 2); });
  if (!fast.stats.empty()) {
    EXPECT_EQ(part_of(reference.stats, 2), part_of(fast.stats, 2))
        << "numbers of keys with nonzero weight differ: " << s.text();
  }
}

void TwoReferences::check() const {
  for (const auto& [key, pool] : pools_) {
    SCOPED_TRACE(key.first + " over " + std::to_string(pool.cases) + " cases; the worst case is: " + pool.worst);
    EXPECT_LE(pool.found_largest, 2 * pool.expected_largest + pool.rounding) << "largest error";
    const double cases = static_cast<double>(pool.cases);
    EXPECT_LE(std::sqrt(pool.found_mean_square / cases),
              2 * std::sqrt(pool.expected_mean_square / cases) + pool.rounding)
        << "root mean square error";
  }
}

}  // namespace lazy::kernels::test
