#include "model/positions/rope.h"

#include <ATen/ATen.h>

namespace lazy {

std::pair<at::Tensor, at::Tensor> RotaryTable::rows(int64_t start, int64_t length, at::Device device) {
  const int64_t needed = start + length;
  if (!cos_.defined() || cos_.size(0) < needed || cos_.device() != device) {
    const int64_t size = cos_.defined() ? std::max(needed, 2 * cos_.size(0)) : needed;
    const auto options = at::TensorOptions().dtype(at::kFloat);
    const at::Tensor exponents = at::arange(0, head_dim_, 2, options) / static_cast<double>(head_dim_);
    const at::Tensor frequencies = at::reciprocal(at::pow(base_, exponents));
    const at::Tensor angles = at::arange(size, options).unsqueeze(1) * frequencies;
    cos_ = angles.cos().to(device);
    sin_ = angles.sin().to(device);
  }
  return {cos_.narrow(0, start, length), sin_.narrow(0, start, length)};
}

at::Tensor rotate(const at::Tensor& x, const at::Tensor& cos, const at::Tensor& sin) {
  const auto halves = x.to(at::kFloat).chunk(2, -1);
  const at::Tensor c = cos.unsqueeze(1), s = sin.unsqueeze(1);  // (length, 1, head_dim / 2)
  return at::cat({halves[0] * c - halves[1] * s, halves[1] * c + halves[0] * s}, -1).to(x.scalar_type());
}

}  // namespace lazy
