// Tests of the skinny GEMM on the CPU: results are compared with float64, and the result of a row must not depend on
// the other rows.
#include "ops/skinny_gemm.h"

#include <ATen/ATen.h>
#include <ATen/CPUGeneratorImpl.h>
#include <ATen/Parallel.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace lazy::ops {
namespace {

at::Tensor skinny_gemm_random(at::IntArrayRef shape, uint64_t seed, double scale = 1) {
  return at::randn(shape, at::detail::createCPUGenerator(seed), at::TensorOptions().dtype(at::kFloat)) * scale;
}

double skinny_gemm_error(const at::Tensor& found, const at::Tensor& expected) {
  return ((found.to(at::kDouble) - expected).abs().max() / expected.abs().max()).item<double>();
}

class SkinnyGemm : public ::testing::TestWithParam<std::tuple<int64_t, int64_t, int64_t>> {};

TEST_P(SkinnyGemm, Product_MatchesFloat64ForEveryWeightType) {
  const auto [rows, in, out] = GetParam();
  const at::Tensor x = skinny_gemm_random({rows, in}, 1), W = skinny_gemm_random({out, in}, 2, 0.1);
  const at::Tensor exact = at::matmul(x.to(at::kDouble), W.to(at::kDouble).t());
  EXPECT_LE(skinny_gemm_error(skinny_linear(x, W), exact), 2e-6);
  const at::Tensor half = W.to(at::kBFloat16);
  EXPECT_LE(skinny_gemm_error(skinny_linear(x, half), at::matmul(x.to(at::kDouble), half.to(at::kDouble).t())), 2e-6);
  const Int8Matrix quantized = quantize_int8(W);
  EXPECT_LE(skinny_gemm_error(skinny_linear(x, quantized),
                              at::matmul(x.to(at::kDouble), dequantize(quantized).to(at::kDouble).t())),
            2e-6);
  const at::Tensor narrow = skinny_linear(x.to(at::kBFloat16), half);
  EXPECT_EQ(narrow.scalar_type(), at::kBFloat16);
  EXPECT_LE(skinny_gemm_error(narrow, at::matmul(x.to(at::kBFloat16).to(at::kDouble), half.to(at::kDouble).t())),
            0x1p-8);
}

TEST_P(SkinnyGemm, Row_DoesNotDependOnOtherRowsOrThreads) {
  const auto [rows, in, out] = GetParam();
  const at::Tensor x = skinny_gemm_random({rows, in}, 1), W = skinny_gemm_random({out, in}, 2);
  const Int8Matrix quantized = quantize_int8(W);
  const at::Tensor all = skinny_linear(x, W), all_int8 = skinny_linear(x, quantized);
  const int before = at::get_num_threads();
  for (const int threads : {1, 2, 3}) {
    at::set_num_threads(threads);
    for (int64_t row = 0; row < rows; ++row) {
      const at::Tensor one = x.narrow(0, row, 1);
      EXPECT_TRUE(at::equal(skinny_linear(one, W), all.narrow(0, row, 1)));
      EXPECT_TRUE(at::equal(skinny_linear(one, quantized), all_int8.narrow(0, row, 1)));
    }
  }
  at::set_num_threads(before);
}

INSTANTIATE_TEST_SUITE_P(Shapes, SkinnyGemm,
                         ::testing::Combine(::testing::Values(1, 2, 4, 5, 7, 16), ::testing::Values(1, 15, 64, 1003),
                                            ::testing::Values(1, 3, 4, 37, 320)));

TEST(SkinnyGemm, QuantizeInt8_RoundsToNearest) {
  const at::Tensor W = skinny_gemm_random({20, 300}, 3);
  const Int8Matrix quantized = quantize_int8(W);
  const at::Tensor apart = (dequantize(quantized) - W).abs(), step = W.abs().amax(1, true) / 127;
  EXPECT_LE((apart / step).max().item<double>(), 0.5001);
  EXPECT_EQ(quantized.values.abs().max().item<int64_t>(), 127);
  const Int8Matrix zeros = quantize_int8(at::zeros({3, 8}));  // a matrix of zeros must not give a scale of zero or NaN
  EXPECT_TRUE(at::equal(dequantize(zeros), at::zeros({3, 8})));
  // Quantizing the dequantized values again must not change them.
  EXPECT_TRUE(at::equal(quantize_int8(dequantize(quantized)).values, quantized.values));
}

TEST(SkinnyGemm, NaN_AffectsOnlyItsRow) {
  at::Tensor x = skinny_gemm_random({3, 40}, 1);
  x[1][7] = NAN;
  const at::Tensor y = skinny_linear(x, skinny_gemm_random({9, 40}, 2));
  EXPECT_TRUE(y[1].isnan().all().item<bool>());
  EXPECT_FALSE(y[0].isnan().any().item<bool>() || y[2].isnan().any().item<bool>());
}

TEST(SkinnyGemm, InvalidArguments_Throw) {
  EXPECT_THROW(skinny_linear(skinny_gemm_random({2, 8}, 1), skinny_gemm_random({4, 9}, 2)), c10::Error);
  EXPECT_THROW(skinny_linear(skinny_gemm_random({2, 8}, 1), skinny_gemm_random({8, 4}, 2).t()), c10::Error);
  EXPECT_THROW(skinny_linear(skinny_gemm_random({2, 8}, 1), skinny_gemm_random({4, 8}, 2).to(at::kDouble)), c10::Error);
  EXPECT_FALSE(supports_skinny_gemm(skinny_gemm_random({17, 8}, 1)));
  EXPECT_FALSE(supports_skinny_gemm(skinny_gemm_random({1, 8}, 1).to(at::kDouble)));
  EXPECT_TRUE(supports_skinny_gemm(skinny_gemm_random({16, 8}, 1)));
}

}  // namespace
}  // namespace lazy::ops
