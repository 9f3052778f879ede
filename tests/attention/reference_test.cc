// Tests of the reference's gradients against finite differences, for every input and normalizer.
#include <gtest/gtest.h>

#include "case.h"

namespace lazy::kernels::test {

namespace {

double loss(const Shape& shape, const Inputs& in) {
  const Results r = run_reference(shape, in);
  double sum = 0;
  for (size_t n = 0; n < r.out.data.size(); ++n) sum += r.out.data[n] * in.d_out.data[n];
  return sum;
}

// Compares the gradient with central differences at some entries spread over x.
void expect_gradient(const char* what, const Shape& shape, std::vector<double>& x, const std::vector<double>& gradient,
                     Inputs& whole) {
  ASSERT_EQ(x.size(), gradient.size()) << what;
  const double step = 1e-6;
  double largest = 0;
  for (double g : gradient) largest = std::max(largest, std::abs(g));
  for (size_t n = 0; n < x.size(); n += std::max<size_t>(1, x.size() / 12)) {
    const double keep = x[n];
    x[n] = keep + step;
    const double up = loss(shape, whole);
    x[n] = keep - step;
    const double down = loss(shape, whole);
    x[n] = keep;
    // The tolerance covers the two errors of a central difference: the rounding error, which is about 1e-16 / step
    // relative to the sum, and the truncation error, which is proportional to the third derivative.
    EXPECT_NEAR((up - down) / (2 * step), gradient[n], 1e-7 * (1 + largest)) << what << "[" << n << "]";
  }
}

class Reference : public testing::TestWithParam<Normalizer> {};

TEST_P(Reference, Gradients_MatchFiniteDifferences) {
  std::vector<Shape> shapes;
  Shape s;
  s.dtype = DType::f64;
  s.normalizer = GetParam();
  s.batch = 2;
  s.heads = 4;
  s.head_dim = 5;
  s.value_dim = 3;
  s.q_length = 7;
  s.k_length = 9;
  s.bias_window = 4;
  s.alibi = true;
  s.tau = -0.93;  // at -1, rows with one visible key would be exactly at the threshold
  shapes.push_back(s);
  s.causal = false;
  s.offset = Offset::constant;
  s.tau = -0.12;
  shapes.push_back(s);
  s.offset = Offset::per_visible;
  s.causal = true;
  s.tau = 0.5;
  s.window = 3;
  s.k_length = 5;  // two rows see no key
  shapes.push_back(s);
  s.window = -1;
  s.batch = 1;
  s.q_length = s.k_length = 11;
  s.tau = -0.93;
  s.cu_q = {0, 4, 4, 11};
  s.cu_k = {0, 5, 6, 11};
  shapes.push_back(s);
  for (const double softcap : {0.7, 5.0, 50.0}) {
    s.softcap = softcap;
    shapes.push_back(s);
  }
  for (const Shape& shape : shapes) {
    SCOPED_TRACE(shape.text());
    Inputs in = make_inputs(shape, 11);
    const Results r = run_reference(shape, in);
    expect_gradient("q", shape, in.q.data, r.d_q.data, in);
    expect_gradient("k", shape, in.k.data, r.d_k.data, in);
    expect_gradient("v", shape, in.v.data, r.d_v.data, in);
    expect_gradient("distance_bias", shape, in.distance_bias, r.d_distance_bias, in);
    expect_gradient("tau", shape, in.tau, r.d_tau, in);
    expect_gradient("sink", shape, in.sink, r.d_sink, in);
    expect_gradient("alibi_slopes", shape, in.alibi_slopes, r.d_alibi_slopes, in);
  }
}

INSTANTIATE_TEST_SUITE_P(Normalizers, Reference, testing::ValuesIn(kAllNormalizers),
                         [](const auto& info) { return std::string(name(info.param)); });

TEST(ReferenceValues, Elastic_MatchesHandComputedValues) {
  // The scores of the two keys are 0 and ln 3, so the softmax probabilities are 1/4 and 3/4. The offset tau divided by
  // the two visible keys is -1/2, which gives the weights 0 and 1/4.
  Shape s;
  s.dtype = DType::f64;
  s.normalizer = Normalizer::elastic;
  s.heads = s.kv_heads = 1;
  s.head_dim = s.value_dim = 1;
  s.q_length = 1;
  s.k_length = 2;
  Inputs in;
  in.q = in.d_out = Tensor(1, 1, 1, 1);
  in.k = in.v = Tensor(1, 2, 1, 1);
  in.q.data = {1};
  in.k.data = {0, std::log(3.0)};
  in.v.data = {5, 8};
  in.d_out.data = {1};
  in.tau = {-1};
  const Results r = run_reference(s, in);
  EXPECT_NEAR(r.out.data[0], 2, 1e-15);
  EXPECT_NEAR(r.lse[0], std::log(4.0), 1e-15);
  EXPECT_NEAR(r.stats[0], 0, 0);         // weight on the first key
  EXPECT_NEAR(r.stats[1], 0.75, 1e-15);  // 1 - (sum of the weights)
  EXPECT_EQ(r.stats[2], 1);              // number of nonzero weights
  EXPECT_EQ(r.score_stats[0], std::log(3.0));
  EXPECT_NEAR(r.score_stats[1], std::log(4.0) - 0.75 * std::log(3.0), 1e-15);
  EXPECT_NEAR(r.d_tau[0], 8 * 0.5, 1e-15);
}

TEST(ReferenceValues, ElasticSink_MatchesHandComputedValues) {
  // exp(score) is 1 and 3 for the two keys, and 4 for the sink. The probabilities are 1/8, 3/8 and 1/2. The offset tau
  // divided by the two visible keys is -1/4, which gives the weights 0 and 1/8.
  Shape s;
  s.dtype = DType::f64;
  s.normalizer = Normalizer::elastic_sink;
  s.heads = s.kv_heads = 1;
  s.head_dim = s.value_dim = 1;
  s.q_length = 1;
  s.k_length = 2;
  Inputs in;
  in.q = in.d_out = Tensor(1, 1, 1, 1);
  in.k = in.v = Tensor(1, 2, 1, 1);
  in.q.data = {1};
  in.k.data = {0, std::log(3.0)};
  in.v.data = {5, 8};
  in.d_out.data = {1};
  in.tau = {-0.5};
  in.sink = {std::log(4.0)};
  const Results r = run_reference(s, in);
  EXPECT_NEAR(r.out.data[0], 1, 1e-15);
  EXPECT_NEAR(r.lse[0], std::log(8.0), 1e-15);
  EXPECT_EQ(r.stats[0], 0);               // weight on the first key
  EXPECT_NEAR(r.stats[1], 0.875, 1e-15);  // 1 - (sum of the weights)
  EXPECT_EQ(r.stats[2], 1);               // number of nonzero weights
  // The gradients of the weights are g = (0, 8), and sum p g = 3.
  EXPECT_NEAR(r.d_tau[0], 8 * 0.5, 1e-15);
  EXPECT_NEAR(r.d_sink[0], -0.5 * 3, 1e-15);
  EXPECT_NEAR(r.d_k.data[0], 0.125 * (0 - 3), 1e-15);
  EXPECT_NEAR(r.d_k.data[1], 0.375 * (8 - 3), 1e-15);
}

TEST(ReferenceValues, SparseWeights_SumToOne) {
  for (Normalizer n : {Normalizer::sparsemax, Normalizer::entmax15}) {
    Shape s;
    s.dtype = DType::f64;
    s.normalizer = n;
    s.q_length = s.k_length = 40;
    s.score_scale = 3;
    const Results r = run_reference(s, make_inputs(s, 5));
    for (size_t row = 0; row < r.lse.size(); ++row) {
      EXPECT_NEAR(r.stats[r.lse.size() + row], 0, 1e-12);
      EXPECT_GE(r.stats[2 * r.lse.size() + row], 1);
    }
  }
}

}  // namespace

}  // namespace lazy::kernels::test
