// GELU and the losses that fast weights learn by, with the derivatives that a gradient of a gradient needs.
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

// Of rows z (..., dim), n = LayerNorm(z) without weight and bias, rstd one over their standard deviation: the gradient
// is G = rstd (h - mean(h) - n mean(h n)) with h = miss weight, miss = weight n + bias - target.
struct InnerNorm {
  at::Tensor weight;
  at::Tensor scaled(const at::Tensor& z) const;                              // weight n
  at::Tensor gradient(const at::Tensor& z, const at::Tensor& offset) const;  // offset: bias - target
};

// The gradients of sum(d * G), chunk by chunk; everything here is (chunks, N, T, ...).
class InnerNormBackward {
 public:
  InnerNormBackward(const at::Tensor& weight, const at::Tensor& z, const at::Tensor& offset);
  at::Tensor by_z(int64_t chunk, const at::Tensor& d, const at::Tensor& G);
  // Once by_z has seen every chunk.
  at::Tensor by_target() const { return d_h_ * weight_.neg(); }
  at::Tensor by_weight() const;  // (N, 1, dim)
  at::Tensor by_bias() const;

 private:
  at::Tensor weight_, square_, z_, mean_, rstd_, n_, miss_, h_;
  at::Tensor projection_;  // rstd mean(h n)
  at::Tensor d_h_;
};

// Of rows e (..., dim): 2 e min(1, sqrt(dim) / |e|). Differentiable.
at::Tensor error_gradient(const at::Tensor& e);
// The gradient of sum(d * error_gradient(e)) by e.
at::Tensor error_gradient_backward(const at::Tensor& e, const at::Tensor& d);

}  // namespace lazy::fast_weights
