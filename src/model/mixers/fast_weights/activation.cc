#include "model/mixers/fast_weights/activation.h"

#include <ATen/ATen.h>

#include <cmath>
#include <numbers>

namespace lazy::fast_weights {
namespace {

const char* approximation(bool tanh) { return tanh ? "tanh" : "none"; }

}  // namespace

at::Tensor Gelu::operator()(const at::Tensor& z) const { return at::gelu(z, approximation(tanh)); }

at::Tensor Gelu::backward(const at::Tensor& gradient, const at::Tensor& z) const {
  return at::gelu_backward(gradient, z, approximation(tanh));
}

void Gelu::write(at::Tensor out, const at::Tensor& z) const { at::gelu_out(out, z, approximation(tanh)); }

void Gelu::write_backward(at::Tensor out, const at::Tensor& gradient, const at::Tensor& z) const {
  at::gelu_backward_out(out, gradient, z, approximation(tanh));
}

at::Tensor Gelu::second(const at::Tensor& z) const {
  const at::Tensor square = z * z;
  if (!tanh) {  // (2 - z^2) phi(z)
    const double scale = std::numbers::inv_sqrtpi / std::numbers::sqrt2;
    at::Tensor density = square.mul(-0.5).exp_();
    return density.mul_(square.neg_().add_(2)).mul_(scale);
  }
  // With u = c (z + a z^3) and t = tanh u: (1 - t^2) (u' + z (u'' / 2 - t u'^2)), where z u'' / 2 = 3 c a z^2.
  constexpr double kA = 0.044715;
  const double c = std::numbers::sqrt2 * std::numbers::inv_sqrtpi;
  const at::Tensor t = (square * (c * kA) + c).mul_(z).tanh_();
  at::Tensor slope = square * (3 * kA * c) + c;
  at::Tensor out = slope.square().mul_(t).mul_(z).neg_();
  out.add_(slope).add_(square, 3 * kA * c);
  return out.mul_(t.square_().neg_().add_(1));
}

}  // namespace lazy::fast_weights
