// Tests properties of the kernels in addition to the numerical tolerance. Results must not depend on the number of
// threads. Rows that see no key must not give NaN. Ties and first rows must give exact zeros where the definition does.
// Statistics must be consistent.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

#include "case.h"

namespace lazy::kernels::test {

namespace {

Shape elastic_shape(int64_t q, int64_t k) {
  Shape s;
  s.normalizer = Normalizer::elastic;
  s.q_length = q;
  s.k_length = k;
  s.head_dim = s.value_dim = 64;
  s.bias_window = 20;
  return s;
}

bool same(const std::vector<double>& x, const std::vector<double>& y) {
  return x.size() == y.size() && std::memcmp(x.data(), y.data(), x.size() * sizeof(double)) == 0;
}

TEST(Properties, Results_DoNotDependOnThreadCount) {
  for (DType type : {DType::f32, DType::bf16}) {
    Shape s = elastic_shape(2100, 2100);  // long enough that the backward uses several splits
    s.dtype = type;
    s.heads = 4;
    const Inputs in = make_inputs(s, 3);
    const Results one = run_fast(s, in, 1);
    for (int threads : {2, 5}) {
      const Results more = run_fast(s, in, threads);
      EXPECT_TRUE(same(one.out.data, more.out.data));
      EXPECT_TRUE(same(one.lse, more.lse));
      EXPECT_TRUE(same(one.stats, more.stats));
      EXPECT_TRUE(same(one.score_stats, more.score_stats));
      EXPECT_TRUE(same(one.d_q.data, more.d_q.data));
      EXPECT_TRUE(same(one.d_k.data, more.d_k.data));
      EXPECT_TRUE(same(one.d_v.data, more.d_v.data));
      EXPECT_TRUE(same(one.d_distance_bias, more.d_distance_bias));
      EXPECT_TRUE(same(one.d_tau, more.d_tau));
    }
  }
}

TEST(Properties, RowsWithoutVisibleKeys_AreZero) {
  Shape s = elastic_shape(70, 3);
  const Inputs in = make_inputs(s, 4);
  const Results r = run_fast(s, in);
  for (int64_t h = 0; h < s.heads; ++h) {
    for (int64_t row = 0; row < 67; ++row) {
      for (int64_t d = 0; d < 64; ++d) {
        ASSERT_EQ(r.out.row(0, row, h)[d], 0);
        ASSERT_EQ(r.d_q.row(0, row, h)[d], 0);
      }
      ASSERT_EQ(r.lse[h * 70 + row], -std::numeric_limits<double>::infinity());
      ASSERT_EQ(r.stats[140 + h * 70 + row], 1);
      ASSERT_EQ(r.stats[280 + h * 70 + row], 0);
      ASSERT_EQ(r.score_stats[h * 70 + row], -std::numeric_limits<double>::infinity());
      ASSERT_EQ(r.score_stats[140 + h * 70 + row], 0);
    }
  }
  for (double x : r.d_k.data) ASSERT_TRUE(std::isfinite(x));
}

// With a softcap, an infinite product is a score of +-softcap, whose gradient is zero.
TEST(Properties, Softcap_OfInfiniteProductsHasZeroGradient) {
  for (Normalizer normalizer : kAllNormalizers) {
    Shape s = elastic_shape(70, 70);
    s.normalizer = normalizer;
    s.bias_window = 0;
    s.softcap = 5;
    Inputs in = make_inputs(s, 12);
    for (int64_t row = 0; row < 70; ++row) in.q.row(0, row, 1)[5] = row % 2 ? -1e20 : 1e20;
    in.k.row(0, 33, 1)[5] = 1e30;
    const Results r = run_fast(s, in);
    for (int64_t row = 33; row < 70; ++row) {
      EXPECT_EQ(std::abs(r.score_stats[70 + row]), 5) << name(normalizer);
      for (int64_t d = 0; d < 64; ++d) {
        ASSERT_TRUE(std::isfinite(r.out.row(0, row, 1)[d])) << name(normalizer);
        ASSERT_EQ(r.d_q.row(0, row, 1)[d], 0) << name(normalizer);
      }
    }
  }
}

// A NaN in a key must reach every row that sees the key, and no other row. A NaN weight must not be treated as zero.
TEST(Properties, NanKey_ReachesOnlyRowsThatSeeIt) {
  for (Normalizer normalizer : kAllNormalizers) {
    Shape s = elastic_shape(70, 70);
    s.normalizer = normalizer;
    Inputs in = make_inputs(s, 12);
    in.k.row(0, 33, 1)[5] = std::numeric_limits<double>::quiet_NaN();
    for (Results r : {run_fast(s, in), run_reference(s, in)}) {
      for (int64_t h = 0; h < s.heads; ++h) {
        for (int64_t i = 0; i < s.q_length; ++i) {
          EXPECT_EQ(std::isnan(r.out.row(0, i, h)[0]), h == 1 && i >= 33)
              << name(normalizer) << " row " << i << " head " << h;
          EXPECT_EQ(std::isnan(r.d_q.row(0, i, h)[0]), h == 1 && i >= 33)
              << name(normalizer) << " row " << i << " head " << h;
          for (const int64_t part : {0, 1}) {
            EXPECT_EQ(std::isnan(r.score_stats[part * 140 + h * 70 + i]), h == 1 && i >= 33)
                << name(normalizer) << " row " << i << " head " << h << " statistic of scores " << part;
          }
        }
      }
    }
  }
}

TEST(Properties, RowsWithoutVisibleKeys_AreZeroForEveryNormalizer) {
  for (Normalizer normalizer : kAllNormalizers) {
    SCOPED_TRACE(name(normalizer));
    Shape s = elastic_shape(70, 3);
    s.normalizer = normalizer;
    const Inputs in = make_inputs(s, 4);
    for (const Results& r : {run_fast(s, in), run_reference(s, in)}) {
      const size_t rows = s.heads * s.q_length;
      for (int64_t h = 0; h < s.heads; ++h) {
        for (int64_t row = 0; row < 67; ++row) {
          for (int64_t d = 0; d < 64; ++d) {
            ASSERT_EQ(r.out.row(0, row, h)[d], 0);
            ASSERT_EQ(r.d_q.row(0, row, h)[d], 0);
          }
          ASSERT_EQ(r.stats[rows + h * 70 + row], 1);
          ASSERT_EQ(r.stats[2 * rows + h * 70 + row], 0);
        }
      }
      for (const std::vector<double>* x : {&r.d_k.data, &r.d_v.data, &r.d_distance_bias}) {
        for (double value : *x) ASSERT_TRUE(std::isfinite(value));
      }
    }
  }
}

// scale: lower bound of the magnitude to which the tolerance is relative. rounding: tolerance relative to this
// magnitude.
void expect_close(const char* what, const std::vector<double>& reference, const std::vector<double>& found,
                  double rounding, double scale = 1) {
  double largest = scale;
  for (double x : reference) largest = std::max(largest, std::abs(x));
  for (size_t n = 0; n < reference.size(); ++n) ASSERT_NEAR(found[n], reference[n], rounding * largest) << what;
}

// Rows whose scores are all equal: zero, above zero, far below zero, and far above zero. With the chosen tau, no weight
// of elastic is close to zero.
TEST(Properties, Ties_MatchReference) {
  for (Normalizer normalizer : kAllNormalizers) {
    for (const double key : {0.0, 0.05, -20.0, 200.0}) {
      SCOPED_TRACE(std::string(name(normalizer)) + ", keys of " + std::to_string(key));
      Shape s = elastic_shape(40, 40);
      s.bias_window = 0;
      Inputs in = make_inputs(s, 9);
      s.normalizer = normalizer;
      in.tau.clear();
      if (traits(normalizer).takes_tau) in.tau.assign(s.heads, -0.5);
      if (traits(normalizer).takes_sink) in.sink.assign(s.heads, 0.25);
      std::fill(in.q.data.begin(), in.q.data.end(), 1.0);
      std::fill(in.k.data.begin(), in.k.data.end(), key);
      const Results reference = run_reference(s, in), found = run_fast(s, in);
      // The backward pass reads the threshold, which is stored in fp32 and has the size of the scores, 8 * key.
      const bool threshold = traits(normalizer).family == NormalizerFamily::threshold;
      const double rounding = 1e-5 + (threshold ? std::numeric_limits<float>::epsilon() * 8 * std::abs(key) : 0);
      expect_close("out", reference.out.data, found.out.data, rounding);
      expect_close("d_q", reference.d_q.data, found.d_q.data, rounding, 1 + std::abs(key));
      expect_close("d_k", reference.d_k.data, found.d_k.data, rounding);
      expect_close("d_v", reference.d_v.data, found.d_v.data, rounding);
      expect_close("stats", reference.stats, found.stats, rounding);
      for (int64_t h = 0; h < s.heads; ++h) {
        for (int64_t row = 0; row < s.q_length; ++row) {
          const double score = 8 * key;  // q . k = 64 * key is divided by sqrt(64)
          ASSERT_NEAR(found.score_stats[h * s.q_length + row], score, 1e-6 * std::abs(score));
          ASSERT_NEAR(found.score_stats[(s.heads + h) * s.q_length + row], std::log(row + 1), 1e-5);
        }
      }
    }
  }
}

TEST(Properties, HugeScores_GiveFiniteResults) {
  for (Normalizer normalizer : kAllNormalizers) {
    SCOPED_TRACE(name(normalizer));
    Shape s = elastic_shape(90, 90);
    s.normalizer = normalizer;
    s.score_scale = 1e4;
    const Inputs in = make_inputs(s, 10);
    for (const Results& r : {run_fast(s, in), run_reference(s, in)}) {
      for (const std::vector<double>* x :
           {&r.out.data, &r.d_q.data, &r.d_k.data, &r.d_v.data, &r.stats, &r.score_stats}) {
        for (double value : *x) ASSERT_TRUE(std::isfinite(value));
      }
    }
  }
}

TEST(Properties, ZeroLengths_GiveZeroResults) {
  for (auto [q, k] : {std::pair{0, 5}, std::pair{5, 0}, std::pair{0, 0}}) {
    const Shape s = elastic_shape(q, k);
    const Inputs in = make_inputs(s, 4);
    const Results r = run_fast(s, in);
    for (double x : r.out.data) ASSERT_EQ(x, 0);
    for (double x : r.d_q.data) ASSERT_EQ(x, 0);
    for (double x : r.d_k.data) ASSERT_EQ(x, 0);
    for (double x : r.d_v.data) ASSERT_EQ(x, 0);
    for (double x : r.d_tau) ASSERT_EQ(x, 0);
    for (double x : r.d_distance_bias) ASSERT_EQ(x, 0);
  }
}

TEST(Properties, ElasticFirstRow_IsExactlyZero) {
  Shape s = elastic_shape(40, 40);
  s.score_scale = 30;
  const Results r = run_fast(s, make_inputs(s, 8));
  for (int64_t h = 0; h < s.heads; ++h) {
    for (int64_t d = 0; d < 64; ++d) ASSERT_EQ(r.out.row(0, 0, h)[d], 0);
    ASSERT_EQ(r.stats[2 * 80 + h * 40], 0);
  }
}

// All scores are equal and tau = -1, so every weight is exactly at the threshold of zero. A weight that is not zero can
// then only be a rounding error, and the output is close to zero.
TEST(Properties, Ties_OfElasticGiveZeroOutput) {
  Shape s = elastic_shape(130, 130);
  s.bias_window = 0;
  Shape at_zero = s;
  at_zero.tau = 0;  // no threshold, so that equal scores are accepted as inputs
  Inputs in = make_inputs(at_zero, 9);
  in.tau.assign(s.heads, -1);
  std::fill(in.q.data.begin(), in.q.data.end(), 0.0);
  const Results r = run_fast(s, in);
  for (double x : r.out.data) ASSERT_NEAR(x, 0, 130 * 4 * 0x1p-24);
}

// With tau >= 0, the weight of every visible key counts as nonzero, even if its softmax probability underflows to zero,
// as most do at this scale of the scores. The weights of all masked keys are zero.
TEST(Properties, NonnegativeTau_KeepsEveryVisibleKeyAlive) {
  for (double tau : {0.0, 0.5}) {
    Shape s = elastic_shape(130, 130);
    s.tau = tau;
    s.score_scale = 200;
    const Results r = run_fast(s, make_inputs(s, 10));
    for (int64_t row = 0; row < 130; ++row) {
      ASSERT_EQ(r.stats[2 * 260 + row], row + 1);
      ASSERT_NEAR(r.stats[260 + row], -tau, 1e-6);
    }
  }
}

// Sinks far below and far above the scores, and near them. Far above, the probabilities of all keys underflow. With a
// window of one key, every row has one visible key, whose probability is below one because of the sink.
TEST(Properties, SinksFarFromTheScores_MatchReference) {
  for (const NormalizerTraits& normalizer : kNormalizers) {
    if (!normalizer.takes_sink) continue;
    for (const DType type : {DType::f32, DType::bf16}) {
      TwoReferences comparison;
      uint64_t seed = 20;
      for (const double sink : {-200.0, -20.0, 0.0, 20.0, 200.0}) {
        for (const double tau : {-1.0, -0.4, 0.0, 0.5}) {
          if (!normalizer.takes_tau && tau != 0) continue;
          Shape s = elastic_shape(90, 90);
          s.normalizer = normalizer.normalizer;
          s.dtype = type;
          s.tau = tau;
          s.sink = sink;
          std::vector<Shape> shapes{s, s, s};
          // If the sink is far below the score of the only key, the gradient of this score is a rounding error.
          shapes[0].window = sink < 0 ? 2 : 1;
          shapes[1].window = 30;
          shapes[1].heads = 4;
          shapes[2].cu_q = shapes[2].cu_k = {0, 60, 60, 61, 90};
          for (const Shape& shape : shapes) {
            comparison.add(shape, make_inputs(shape, seed++));
            if (HasFailure()) return;
          }
        }
      }
      comparison.check();
    }
  }
}

// With tau = 0, elastic_sink is softmax_sink. With a sink of -inf, it is elastic.
TEST(Properties, ElasticSink_EqualsItsSpecialCases) {
  Shape s = elastic_shape(100, 100);
  s.tau = 0;
  s.score_scale = 3;
  const auto expect_equal = [](const Results& found, const Results& expected) {
    expect_close("out", expected.out.data, found.out.data, 1e-6);
    expect_close("d_q", expected.d_q.data, found.d_q.data, 1e-6);
    expect_close("d_k", expected.d_k.data, found.d_k.data, 1e-6);
    expect_close("d_v", expected.d_v.data, found.d_v.data, 1e-6);
    expect_close("lse", expected.lse, found.lse, 1e-6);
    expect_close("stats", expected.stats, found.stats, 1e-6);
    expect_close("score_stats", expected.score_stats, found.score_stats, 1e-6);
  };
  Inputs in = make_inputs(s, 15);
  in.sink = {0.7, -2};
  Shape both = s;
  both.normalizer = Normalizer::elastic_sink;
  const Results zero_tau = run_fast(both, in);
  {
    SCOPED_TRACE("softmax_sink");
    s.normalizer = Normalizer::softmax_sink;
    Inputs without_tau = in;
    without_tau.tau.clear();
    const Results expected = run_fast(s, without_tau);
    expect_equal(zero_tau, expected);
    expect_close("d_sink", expected.d_sink, zero_tau.d_sink, 1e-6);
  }
  {
    SCOPED_TRACE("elastic");
    s.normalizer = Normalizer::elastic;
    s.tau = both.tau = -1;
    Inputs without_sink = make_inputs(s, 16);
    in = without_sink;
    in.sink.assign(static_cast<size_t>(s.heads), -std::numeric_limits<double>::infinity());
    const Results expected = run_fast(s, without_sink), found = run_fast(both, in);
    expect_equal(found, expected);
    expect_close("d_tau", expected.d_tau, found.d_tau, 1e-6);
    for (double x : found.d_sink) EXPECT_EQ(x, 0);
  }
}

TEST(Properties, PackedDocuments_MatchSeparateProblems) {
  Shape packed = elastic_shape(150, 170);
  packed.cu_q = {0, 60, 60, 61, 150};
  packed.cu_k = {0, 70, 75, 76, 170};
  const Inputs in = make_inputs(packed, 12);
  const Results all = run_fast(packed, in);
  TwoReferences comparison;
  comparison.add(packed, in);
  comparison.check();
  // The last document must be bitwise equal to the same document computed as a separate problem.
  Shape alone = elastic_shape(89, 94);
  Inputs part = in;
  auto slice = [](const Tensor& from, int64_t begin) {
    Tensor t(1, from.tokens - begin, from.heads, from.dim);
    std::copy(from.row(0, begin, 0), from.row(0, begin, 0) + t.data.size(), t.data.begin());
    return t;
  };
  part.q = slice(in.q, 61);
  part.k = slice(in.k, 76);
  part.v = slice(in.v, 76);
  part.d_out = slice(in.d_out, 61);
  const Results one = run_fast(alone, part);
  EXPECT_TRUE(same(one.out.data, slice(all.out, 61).data));
  EXPECT_TRUE(same(one.d_k.data, slice(all.d_k, 76).data));
}

TEST(Properties, UnmetCondition_IsNamedInTheMessage) {
  Problem p = make_problem(elastic_shape(4, 4));
  EXPECT_EQ(unmet_condition(p), "");
  p.dtype = DType::f64;
  EXPECT_THAT(unmet_condition(p), testing::HasSubstr("float64"));
  Forward<float> a;
  EXPECT_THROW(forward(p, a), std::invalid_argument);
}

}  // namespace

}  // namespace lazy::kernels::test
