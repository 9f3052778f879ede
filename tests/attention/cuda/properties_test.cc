// What the CUDA kernels promise beside the tolerance: the same bits when asked, errors that name the condition.
#include <gtest/gtest.h>

#include <cmath>

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

TEST_P(CudaKernels, DeterministicGivesTheSameBits) {
  current_run().deterministic = true;
  for (Normalizer normalizer : kAllNormalizers) {
    const Shape s = usual(normalizer);
    if (!unmet_condition_cuda(make_problem(s), GetParam()).empty()) continue;  // hopper serves one family
    SCOPED_TRACE(name(normalizer));
    const Inputs inputs = make_inputs(s, 3);
    const Results first = run_cuda(s, inputs);
    for (int n = 0; n < 3; ++n) expect_same(first, run_cuda(s, inputs));
  }
}

TEST_P(CudaKernels, OnlyQueriesDependOnTheOrderByDefault) {
  current_run().deterministic = false;
  const Inputs inputs = make_inputs(usual(), 4);
  Results first = run_cuda(usual(), inputs), second = run_cuda(usual(), inputs);
  first.d_q.data.clear();
  second.d_q.data.clear();
  expect_same(first, second);
}

TEST_P(CudaKernels, StatisticsOfScoresChangeNothingElse) {
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

TEST_P(CudaKernels, OneKeyWithOffsetMinusOneIsExactlyZero) {
  current_run().deterministic = false;
  Shape s = usual();
  s.q_length = s.k_length = 1;
  s.score_scale = 40;
  s.bias_window = 0;
  const Results r = run_cuda(s, make_inputs(s, 5));
  for (double x : r.out.data) EXPECT_EQ(x, 0);
  for (double x : r.d_q.data) EXPECT_EQ(x, 0);
}

TEST_P(CudaKernels, NotANumberReachesItsRowAlone) {
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

INSTANTIATE_TEST_SUITE_P(All, CudaKernels, testing::Values(CudaKernel::plain, CudaKernel::portable, CudaKernel::hopper),
                         [](const auto& info) { return std::string(name(info.param)); });

TEST(CudaErrors, NameTheUnmetCondition) {
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
