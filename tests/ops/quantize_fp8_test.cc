// Tests of lazy::quantize_fp8 on the CPU or on the device of LAZY_TEST_DEVICE: scales, rounding and layouts. On a GPU,
// the stored numbers must equal the numbers that are computed on the CPU.
#include "ops/quantize_fp8.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <cmath>

#include "ops/device.h"
#include "ops/torch_error_of.h"

namespace lazy::ops {
namespace {

const c10::Device kFp8Device = test::test_device();

class QuantizeFp8 : public testing::TestWithParam<at::ScalarType> {
 protected:
  // bits: number of mantissa bits of the fp8 type. least: smallest positive number of the fp8 type.
  int bits() const { return GetParam() == at::kFloat8_e4m3fn ? 3 : 2; }
  double least() const { return std::ldexp(1, GetParam() == at::kFloat8_e4m3fn ? -9 : -16); }
};

at::Tensor values(const at::Tensor& q, const at::Tensor& scale) {
  return q.to(at::kCPU).to(at::kDouble) * scale.item<double>();
}

TEST_P(QuantizeFp8, ValuesScaleAndLayouts_AreCorrect) {
  at::manual_seed(5);
  for (const auto& [n, widths] : std::vector<std::pair<int64_t, std::vector<int64_t>>>{
           {16, {16}}, {64, {128}}, {80, {160, 32, 16}}, {7, {5}}, {65, {129, 1}}, {1, {8}}, {208, {272}}}) {
    for (const double size : {1.0, 1e-6, 3e4}) {
      std::vector<at::Tensor> parts, on_cpu;
      for (const int64_t width : widths) {
        const at::Tensor wide = (at::randn({n, width + 16}) * size).to(at::kBFloat16);
        on_cpu.push_back(wide.narrow(1, 8, width));
        parts.push_back(wide.to(kFp8Device).narrow(1, 8, width));  // a view of some columns of a wider matrix
      }
      const Fp8Matrix m = quantize_fp8(parts, GetParam(), true, true);
      const std::string where = fmt::format("{} rows, {} columns, size {}", n, fmt::join(widths, " + "), size);
      const at::Tensor x = at::cat(on_cpu, 1).to(at::kDouble);
      const double scale = m.scale.item<double>();
      EXPECT_NEAR(scale * largest_fp8(GetParam()) / x.abs().max().item<double>(), 1, 1e-6) << where;
      ASSERT_EQ(m.rows.sizes(), x.sizes()) << where;
      EXPECT_EQ(m.rows.scalar_type(), GetParam());
      EXPECT_TRUE(m.rows.is_contiguous() && m.transposed.is_contiguous());
      const at::Tensor found = values(m.rows, m.scale);
      EXPECT_TRUE(at::equal(found, values(m.transposed, m.scale).t())) << where;
      const at::Tensor allowed =
          at::max(x.abs() * std::ldexp(1, -bits() - 1), at::full_like(x, scale * least() / 2)) * (1 + 1e-6);
      EXPECT_TRUE(((found - x).abs() <= allowed).all().item<bool>()) << where;
      const Fp8Matrix expected = quantize_fp8(on_cpu, GetParam(), true, false);
      EXPECT_FALSE(expected.transposed.defined());
      EXPECT_TRUE(at::equal(expected.rows.view(at::kByte), m.rows.to(at::kCPU).view(at::kByte))) << where;
      EXPECT_EQ(expected.scale.item<float>(), m.scale.item<float>()) << where;
      EXPECT_FALSE(quantize_fp8(parts, GetParam(), false, true).rows.defined());
    }
  }
}

TEST_P(QuantizeFp8, Zeros_StayZeroAndNonFiniteInputPropagates) {
  const at::Tensor zeros = at::zeros({32, 48}, at::kBFloat16).to(kFp8Device);
  const Fp8Matrix none = quantize_fp8({zeros}, GetParam(), true, true);
  EXPECT_TRUE(std::isfinite(none.scale.item<float>()) && none.scale.item<float>() > 0);
  EXPECT_EQ(values(none.rows, none.scale).abs().max().item<double>(), 0);
  for (const double wrong : {NAN, INFINITY, -INFINITY}) {
    at::Tensor x = at::ones({32, 48}, at::kBFloat16);
    x[3][7] = wrong;
    EXPECT_FALSE(std::isfinite(quantize_fp8({x.to(kFp8Device)}, GetParam(), true, true).scale.item<float>())) << wrong;
  }
}

TEST_P(QuantizeFp8, InvalidArguments_AreNamedInError) {
  const auto message = [&](at::TensorList parts, at::ScalarType type) {
    return test::torch_error_of([&] { quantize_fp8(parts, type, true, false); });
  };
  const at::Tensor x = at::zeros({4, 8}, at::kBFloat16).to(kFp8Device);
  EXPECT_THAT(message({x}, at::kHalf), Names({"lazy::quantize_fp8", "float8_e4m3fn", "float8_e5m2", "Half"}));
  EXPECT_THAT(message({x, x.narrow(0, 0, 3)}, GetParam()),
              Names({"lazy::quantize_fp8", std::string("[4, 8]"), std::string("[3, 8]")}));
  EXPECT_THAT(message({x.to(at::kHalf)}, GetParam()), Names({"lazy::quantize_fp8", "bfloat16", "Half"}));
}

INSTANTIATE_TEST_SUITE_P(Types, QuantizeFp8, testing::Values(at::kFloat8_e4m3fn, at::kFloat8_e5m2),
                         [](const auto& info) {
                           return std::string(info.param == at::kFloat8_e5m2 ? "e5m2" : "e4m3");
                         });

}  // namespace
}  // namespace lazy::ops
