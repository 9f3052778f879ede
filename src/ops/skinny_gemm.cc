#include "ops/skinny_gemm.h"

#include <ATen/ATen.h>
#include <ATen/Parallel.h>

#include <algorithm>

#include "ops/skinny_gemm_kernel.h"
#include "ops/step_kernels.h"

namespace lazy::ops {

namespace {

at::Tensor product(const at::Tensor& x, const at::Tensor& W, skinny::WeightType type, const float* scale) {
  const int64_t rows = x.size(0), in = x.size(1), out = W.size(0);
  const at::Tensor wide = x.to(at::kFloat).contiguous(), y = at::empty({rows, out}, wide.options());
  const float* from = wide.const_data_ptr<float>();
  float* to = y.mutable_data_ptr<float>();
  constexpr int64_t kGrain = 1 << 15;  // minimum number of weights per thread
  at::parallel_for(0, out, std::max<int64_t>(kGrain / std::max<int64_t>(in, 1), 1), [&](int64_t begin, int64_t end) {
    skinny::product(from, rows, type, W.const_data_ptr(), scale, in, to, out, begin, end);
  });
  return y.to(x.scalar_type());
}

void check(const at::Tensor& x, const at::Tensor& W) {
  TORCH_CHECK(x.dim() == 2 && W.dim() == 2 && x.size(1) == W.size(1), "skinny_linear: expected x (rows, in) and W ",
              "(out, in), found ", x.sizes(), " and ", W.sizes());
  TORCH_CHECK(W.is_contiguous(), "skinny_linear: expected contiguous weights, found strides ", W.strides());
}

}  // namespace

Int8Matrix quantize_int8(const at::Tensor& W) {
  const at::Tensor largest = W.abs().amax(1), scale = at::where(largest > 0, largest / 127, at::ones_like(largest));
  return {at::round(W / scale.unsqueeze(1)).to(at::kChar).contiguous(), scale.contiguous()};
}

at::Tensor dequantize(const Int8Matrix& W) { return W.values.to(at::kFloat) * W.scale.unsqueeze(1); }

bool supports_skinny_gemm(const at::Tensor& x) {
  const at::ScalarType type = x.scalar_type();
  if (x.is_cuda()) {
    return step_kernels() && x.size(0) <= kMaxSkinnyRowsCuda && x.size(1) % 8 == 0 &&
           (type == at::kBFloat16 || type == at::kHalf);
  }
  return x.is_cpu() && x.size(0) <= kMaxSkinnyRowsCpu && (type == at::kFloat || type == at::kBFloat16);
}

void check_skinny_gemm(const SkinnyGemmInput& input, const at::Tensor& W) {
  check(input.x, W);
  TORCH_CHECK(supports_skinny_gemm(input.x) && input.x.is_cuda(), "skinny_gemm: expected x (rows, in) on a GPU, found ",
              input.x.sizes(), " of ", input.x.scalar_type(), " on ", input.x.device());
  TORCH_CHECK(W.scalar_type() == input.x.scalar_type() && W.device() == input.x.device(),
              "skinny_gemm: expected weights with the dtype and device of x, found ", W.scalar_type(), " on ",
              W.device());
}

at::Tensor skinny_gemm(const SkinnyGemmInput& input, const at::Tensor& W, bool swiglu, bool wide) {
  check_skinny_gemm(input, W);
  if (input.add.defined()) {
    const at::Tensor& add = input.add;
    TORCH_CHECK(!swiglu && !wide && add.scalar_type() == input.x.scalar_type() && add.device() == input.x.device() &&
                    add.sizes() == at::IntArrayRef({input.x.size(0), W.size(0)}),
                "skinny_gemm: expected `add` with the shape of the product and the dtype of x, found ", add.sizes(),
                " of ", add.scalar_type(), " on ", add.device());
  }
  return step_kernels()->skinny_gemm(input, W, swiglu, wide);
}

at::Tensor skinny_linear(const at::Tensor& x, const at::Tensor& W, bool wide) {
  if (x.is_cuda()) return skinny_gemm({.x = x}, W, false, wide);
  check(x, W);
  TORCH_CHECK(W.scalar_type() == at::kFloat || W.scalar_type() == at::kBFloat16,
              "skinny_linear: expected weights in float32 or bfloat16, found ", W.scalar_type());
  const at::Tensor y =
      product(x, W, W.scalar_type() == at::kFloat ? skinny::WeightType::f32 : skinny::WeightType::bf16, nullptr);
  return wide ? y.to(at::kFloat) : y;
}

at::Tensor skinny_linear(const at::Tensor& x, const Int8Matrix& W) {
  check(x, W.values);
  TORCH_CHECK(W.values.scalar_type() == at::kChar && W.scale.numel() == W.values.size(0),
              "skinny_linear: expected int8 weights and one scale per row, found ", W.values.scalar_type(), " and ",
              W.scale.sizes());
  return product(x, W.values, skinny::WeightType::int8, W.scale.const_data_ptr<float>());
}

}  // namespace lazy::ops
