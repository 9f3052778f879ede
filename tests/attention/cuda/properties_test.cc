// Tests properties of the CUDA kernels other than their numerical errors: deterministic results on request, and error
// messages that name the unmet condition.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <stdexcept>

#include "run_cuda.h"

namespace lazy::kernels::test {

namespace {

Shape usual(Normalizer normalizer = Normalizer::elastic) {
  Shape s;
  s.dtype = DType::bf16;
  s.normalizer = normalizer;
  s.q_length = s.k_length = 700;
  s.heads = 4;
  s.kv_heads = 2;
  s.head_dim = s.value_dim = 64;
  s.bias_window = 300;
  return s;
}

void expect_same(const Results& a, const Results& b) {
  EXPECT_EQ(a.out.data, b.out.data);
  EXPECT_EQ(a.lse, b.lse);
  EXPECT_EQ(a.stats, b.stats);
  EXPECT_EQ(a.score_stats, b.score_stats);
  EXPECT_EQ(a.d_q.data, b.d_q.data);
  EXPECT_EQ(a.d_k.data, b.d_k.data);
  EXPECT_EQ(a.d_v.data, b.d_v.data);
  EXPECT_EQ(a.d_distance_bias, b.d_distance_bias);
  EXPECT_EQ(a.d_tau, b.d_tau);
}

class CudaKernels : public testing::TestWithParam<CudaKernel> {
 protected:
  void SetUp() override {
    if (!has_gpu()) GTEST_SKIP() << "no NVIDIA GPU";
    const std::string unmet = unmet_condition_cuda(make_problem(usual()), GetParam());
    if (!unmet.empty()) GTEST_SKIP() << unmet;
    current_run().kernel = GetParam();
  }
};

TEST_P(CudaKernels, Deterministic_RunsAreBitIdentical) {
  current_run().deterministic = true;
  for (Normalizer normalizer : kAllNormalizers) {
    const Shape s = usual(normalizer);
    // Skip the normalizers that the kernel does not support: the Hopper kernel supports only one family.
    if (!unmet_condition_cuda(make_problem(s), GetParam()).empty()) continue;
    SCOPED_TRACE(name(normalizer));
    const Inputs inputs = make_inputs(s, 3);
    const Results first = run_cuda(s, inputs);
    for (int n = 0; n < 3; ++n) expect_same(first, run_cuda(s, inputs));
  }
}

TEST_P(CudaKernels, DefaultRuns_DifferOnlyInQueryGradients) {
  current_run().deterministic = false;
  const Inputs inputs = make_inputs(usual(), 4);
  Results first = run_cuda(usual(), inputs), second = run_cuda(usual(), inputs);
  first.d_q.data.clear();
  second.d_q.data.clear();
  expect_same(first, second);
}

TEST_P(CudaKernels, ScoreStats_DoNotChangeOtherResults) {
  current_run().deterministic = true;
  for (Normalizer normalizer : kAllNormalizers) {
    const Shape s = usual(normalizer);
    if (!unmet_condition_cuda(make_problem(s), GetParam()).empty()) continue;
    SCOPED_TRACE(name(normalizer));
    const Inputs inputs = make_inputs(s, 8);
    Results with = run_cuda(s, inputs);
    for (double x : with.score_stats) ASSERT_TRUE(std::isfinite(x));
    with.score_stats.clear();
    current_run().score_stats = false;
    expect_same(with, run_cuda(s, inputs));
    current_run().score_stats = true;
  }
}

TEST_P(CudaKernels, OneKeyWithTauMinusOne_GivesExactZeros) {
  current_run().deterministic = false;
  Shape s = usual();
  s.q_length = s.k_length = 1;
  s.score_scale = 40;
  s.bias_window = 0;
  const Results r = run_cuda(s, make_inputs(s, 5));
  for (double x : r.out.data) EXPECT_EQ(x, 0);
  for (double x : r.d_q.data) EXPECT_EQ(x, 0);
}

TEST_P(CudaKernels, NanQuery_ReachesOnlyItsRow) {
  for (Normalizer normalizer : kAllNormalizers) {
    Shape s = usual(normalizer);
    s.q_length = s.k_length = 200;
    s.heads = s.kv_heads = 1;
    s.bias_window = 0;
    if (!unmet_condition_cuda(make_problem(s), GetParam()).empty()) continue;
    SCOPED_TRACE(name(normalizer));
    Inputs inputs = make_inputs(s, 6);
    const int64_t row = 150, elements = s.head_dim;
    inputs.q.data[row * elements] = NAN;
    const Results r = run_cuda(s, inputs);
    for (int64_t n = 0; n < s.q_length * elements; ++n) {
      ASSERT_EQ(std::isnan(r.out.data[n]), n / elements == row) << n;
      ASSERT_EQ(std::isnan(r.d_q.data[n]), n / elements == row) << n;
    }
  }
}

// Tests the backward of a softmax over keys that are split into two halves. The backward of each half receives out and
// lse (the log-sum-exp) of the softmax over all keys. The two results together must equal the gradients of the softmax
// over all keys.
TEST_P(CudaKernels, SoftmaxInParts_MatchesWholeSoftmax) {
  current_run().deterministic = false;
  Shape s = usual(Normalizer::softmax);
  s.causal = false;
  s.q_length = 70;
  s.k_length = 600;
  s.bias_window = 0;
  const Inputs inputs = make_inputs(s, 7);
  const Results whole = run_cuda(s, inputs);
  Shape half = s;
  half.normalizer = Normalizer::softmax_sink;
  half.k_length = s.k_length / 2;
  std::vector<Results> parts;
  for (const int64_t first : {int64_t{0}, half.k_length}) {
    Inputs in = inputs;
    const auto part_of = [&](const Tensor& x) {
      Tensor part(1, half.k_length, x.heads, x.dim);
      std::copy_n(x.row(0, first, 0), part.data.size(), part.data.begin());
      return part;
    };
    in.k = part_of(inputs.k), in.v = part_of(inputs.v);
    in.sink.assign(static_cast<size_t>(s.heads), 3.0);  // arbitrary values, because the backward must not read the sink
    current_run().whole = &whole;
    if (GetParam() == CudaKernel::plain) {
      EXPECT_THROW(run_cuda(half, in), std::logic_error);
    } else {
      parts.push_back(run_cuda(half, in));
    }
    current_run().whole = nullptr;
  }
  if (parts.empty()) return;
  const auto expect_near = [](const std::vector<double>& got, const std::vector<double>& want, const char* what) {
    ASSERT_EQ(got.size(), want.size());
    double largest = 0, difference = 0;
    for (size_t n = 0; n < want.size(); ++n) {
      largest = std::max(largest, std::abs(want[n]));
      difference = std::max(difference, std::abs(got[n] - want[n]));
    }
    EXPECT_LT(difference, 0.01 * largest) << what;
  };
  std::vector<double> d_q = parts[0].d_q.data, d_k = parts[0].d_k.data, d_v = parts[0].d_v.data;
  for (size_t n = 0; n < d_q.size(); ++n) d_q[n] += parts[1].d_q.data[n];
  d_k.insert(d_k.end(), parts[1].d_k.data.begin(), parts[1].d_k.data.end());
  d_v.insert(d_v.end(), parts[1].d_v.data.begin(), parts[1].d_v.data.end());
  expect_near(d_q, whole.d_q.data, "d_q");
  expect_near(d_k, whole.d_k.data, "d_k");
  expect_near(d_v, whole.d_v.data, "d_v");
}

INSTANTIATE_TEST_SUITE_P(All, CudaKernels, testing::Values(CudaKernel::plain, CudaKernel::portable, CudaKernel::hopper),
                         [](const auto& info) { return std::string(name(info.param)); });

TEST(CudaErrors, UnmetCondition_IsNamedInTheMessage) {
  Shape s = usual();
  s.dtype = DType::f32;
  EXPECT_NE(unmet_condition_cuda(make_problem(s), CudaKernel::portable).find("float32"), std::string::npos);
  s = usual();
  s.head_dim = s.value_dim = 300;
  EXPECT_NE(unmet_condition_cuda(make_problem(s), CudaKernel::automatic).find("300"), std::string::npos);
  s = usual();
  s.normalizer = Normalizer::sparsemax;
  EXPECT_NE(unmet_condition_cuda(make_problem(s), CudaKernel::hopper).find("sparsemax"), std::string::npos);
  EXPECT_EQ(unmet_condition_cuda(make_problem(s), CudaKernel::portable).find("serves"), std::string::npos);
  s.head_dim = s.value_dim = 96;
  EXPECT_NE(unmet_condition_cuda(make_problem(s), CudaKernel::portable).find("head sizes 64, 128 with sparsemax"),
            std::string::npos);
}

}  // namespace

}  // namespace lazy::kernels::test
