#include "ops/round_to_nearest.h"

#include <ATen/ATen.h>

namespace lazy::ops {

Rounded rounded(const at::Tensor& x, const Rounding& rounding) {
  TORCH_CHECK(x.dim() == 2 && rounding.bits >= 2 && rounding.bits <= 8,
              "round_to_nearest: expected a matrix and 2 to 8 bits, found ", x.sizes(), " and ", rounding.bits);
  const at::Tensor wide = x.to(at::kFloat), size = wide.abs();
  const at::Tensor largest = rounding.unit == RoundingUnit::tensor  ? size.amax({0, 1}, true)
                             : rounding.unit == RoundingUnit::token ? size.amax({1}, true)
                                                                    : size.amax({0}, true);
  const at::Tensor scale =
      at::where(largest > 0, largest / static_cast<double>((1 << (rounding.bits - 1)) - 1), at::ones_like(largest));
  return {at::round(wide / scale).to(at::kChar), scale};
}

at::Tensor round_to_nearest(const at::Tensor& x, const Rounding& rounding) {
  if (x.numel() == 0) return x;
  const Rounded r = rounded(x.reshape({-1, x.size(-1)}), rounding);
  return (r.values * r.scale).to(x.scalar_type()).view(x.sizes());
}

bool has_int8_product(const Rounded& x, const Rounded& W) {
  if (x.scale.size(1) != 1 || W.scale.size(1) != 1) return false;
  if (!x.values.is_cuda()) return true;
  return x.values.size(0) > 16 && x.values.size(1) % 8 == 0 && W.values.size(0) % 8 == 0;  // required by cuBLASLt
}

at::Tensor int8_product(const Rounded& x, const Rounded& W) {
  return at::_int_mm(x.values, W.values.t()).to(at::kFloat) * x.scale * W.scale.t();
}

}  // namespace lazy::ops
