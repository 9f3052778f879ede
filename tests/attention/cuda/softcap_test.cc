// Tests of every CUDA kernel that supports a softcap against the float64 reference, with small and saturated scores,
// combined with all other options that change a score or mask a key.
#include <gtest/gtest.h>

#include "run_cuda.h"

namespace lazy::kernels::test {

namespace {

using Parameter = std::tuple<CudaKernel, DType, Normalizer>;

class CudaSoftcap : public testing::TestWithParam<Parameter> {
 protected:
  void TearDown() override { current_run() = {}; }
};

std::vector<Shape> shapes(DType dtype, Normalizer normalizer, int64_t head_dim) {
  Shape s;
  s.dtype = dtype;
  s.normalizer = normalizer;
  s.heads = s.kv_heads = 4;
  s.q_length = s.k_length = 100;
  s.head_dim = s.value_dim = head_dim;
  std::vector<Shape> all;
  for (const double softcap : {5.0, 50.0}) {
    s.softcap = softcap;
    for (const double score_scale : {1.0, 40.0}) {
      Shape one = s;
      one.score_scale = score_scale;
      one.kv_heads = 2;
      all.push_back(one);
      one.bias_window = 30;
      one.alibi = true;
      one.causal = false;
      all.push_back(one);
      one.causal = true;
      one.window = 20;
      one.k_length = 137;
      all.push_back(one);
      one = s;
      one.score_scale = score_scale;
      one.bias_window = 16;
      one.cu_q = {0, 30, 30, 55, 100};
      one.cu_k = {0, 20, 45, 45, 100};  // the third document has no keys
      all.push_back(one);
    }
  }
  return all;
}

TEST_P(CudaSoftcap, MatchesReference) {
  if (!has_gpu()) GTEST_SKIP() << "no NVIDIA GPU";
  const auto [kernel, dtype, normalizer] = GetParam();
  TwoReferences comparison;
  uint64_t seed = 1;
  for (const int64_t head_dim : {64, 128}) {
    for (const Shape& shape : shapes(dtype, normalizer, head_dim)) {
      const std::string unmet = unmet_condition_cuda(make_problem(shape), kernel);
      if (unmet.find("compute capability") != std::string::npos) GTEST_SKIP() << unmet;
      ASSERT_EQ(unmet, "") << shape.text();
      current_run() = {.kernel = kernel, .deterministic = seed % 2 == 1};
      const Inputs inputs = make_inputs(shape, seed++);
      comparison.add(shape, inputs, run_cuda(shape, inputs));
      if (HasFailure()) return;
    }
  }
  comparison.check();
}

std::string test_name(const testing::TestParamInfo<Parameter>& info) {
  const auto& [kernel, dtype, normalizer] = info.param;
  return std::string(name(kernel)) + "_" + name(dtype) + "_" + name(normalizer);
}

INSTANTIATE_TEST_SUITE_P(Plain, CudaSoftcap,
                         testing::Combine(testing::Values(CudaKernel::plain),
                                          testing::Values(DType::f32, DType::bf16, DType::f16),
                                          testing::ValuesIn(kAllNormalizers)),
                         test_name);

INSTANTIATE_TEST_SUITE_P(Portable, CudaSoftcap,
                         testing::Combine(testing::Values(CudaKernel::portable),
                                          testing::Values(DType::bf16, DType::f16),
                                          testing::Values(Normalizer::softmax, Normalizer::elastic,
                                                          Normalizer::softmax_sink, Normalizer::elastic_sink)),
                         test_name);

}  // namespace

}  // namespace lazy::kernels::test
