// GELU between the layers of fast weights, with the derivatives that a gradient of a gradient needs.
#pragma once
#include <ATen/core/Tensor.h>

namespace lazy::fast_weights {

struct Gelu {
  bool tanh;  // the approximation by tanh

  at::Tensor operator()(const at::Tensor& z) const;
  at::Tensor backward(const at::Tensor& gradient, const at::Tensor& z) const;  // gradient * act'(z)
  at::Tensor second(const at::Tensor& z) const;                                // act''(z)
  // The first two, written where `out` is.
  void write(at::Tensor out, const at::Tensor& z) const;
  void write_backward(at::Tensor out, const at::Tensor& gradient, const at::Tensor& z) const;
};

}  // namespace lazy::fast_weights
