// GELU and the inner losses of fast weights, with the second derivatives that the outer backward pass needs.
#pragma once
#include <ATen/core/Tensor.h>

namespace lazy::fast_weights {

struct Gelu {
  bool tanh;  // true: tanh approximation of GELU; false: exact GELU

  at::Tensor operator()(const at::Tensor& z) const;
  at::Tensor backward(const at::Tensor& gradient, const at::Tensor& z) const;  // gradient * GELU'(z)
  at::Tensor second(const at::Tensor& z) const;                                // second derivative of GELU at z
  // Same results as operator() and backward(), written to `out`.
  void write(at::Tensor out, const at::Tensor& z) const;
  void write_backward(at::Tensor out, const at::Tensor& gradient, const at::Tensor& z) const;
};

// Computes the gradient G of the loss 1/2 |LayerNorm(z) - target|^2 with respect to the rows z (..., dim):
//   G = rstd (h - mean(h) - n mean(h n)),
// where n = (z - mean) rstd are the normalized rows, miss = weight n + bias - target is the error, and h = miss weight.
struct InnerNorm {
  at::Tensor weight;
  at::Tensor scaled(const at::Tensor& z) const;                              // returns weight * n
  at::Tensor gradient(const at::Tensor& z, const at::Tensor& offset) const;  // offset: bias - target
};

// Backward pass of InnerNorm::gradient. Given d, the gradient of the outer loss with respect to G, it computes the
// gradients of sum(d * G) with respect to z, target, weight and bias. by_z() processes one chunk and returns the
// gradient with respect to z. All tensors have the shape (chunks, N, T, ...), with N sequences times heads and T tokens
// per chunk.
class InnerNormBackward {
 public:
  InnerNormBackward(const at::Tensor& weight, const at::Tensor& z, const at::Tensor& offset);
  at::Tensor by_z(int64_t chunk, const at::Tensor& d, const at::Tensor& G);
  // The following functions may be called only after by_z has processed every chunk.
  at::Tensor by_target() const { return d_h_ * weight_.neg(); }
  at::Tensor by_weight() const;  // (N, 1, dim)
  at::Tensor by_bias() const;

 private:
  at::Tensor weight_, square_, z_, mean_, rstd_, n_, miss_, h_;
  at::Tensor projection_;  // rstd mean(h n)
  at::Tensor d_h_;
};

// Returns 2 e min(1, sqrt(dim) / |e|) for rows e (..., dim). This is the gradient of |e|^2, clipped for errors longer
// than sqrt(dim). The function is differentiable.
at::Tensor error_gradient(const at::Tensor& e);
// Returns the gradient of sum(d * error_gradient(e)) with respect to e.
at::Tensor error_gradient_backward(const at::Tensor& e, const at::Tensor& d);

}  // namespace lazy::fast_weights
