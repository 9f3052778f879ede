// The loss that TTT's models and normalized memories learn by, 1/2 |LayerNorm(z) weight + bias - target|^2: its
// gradient by z, and how that moves.
#pragma once
#include <ATen/core/Tensor.h>

namespace lazy::fast_weights {

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

}  // namespace lazy::fast_weights
