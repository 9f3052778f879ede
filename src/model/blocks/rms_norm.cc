#include "model/blocks/rms_norm.h"

#include <ATen/ATen.h>

namespace lazy {

at::Tensor rms_norm(const at::Tensor& x, const at::Tensor& weight, double eps) {
  const at::Tensor wide = x.to(at::kFloat);
  const at::Tensor scale = at::rsqrt(wide.square().mean(-1, /*keepdim=*/true) + eps);
  return (wide * scale * weight).to(x.scalar_type());
}

}  // namespace lazy
