// The forward and backward pass of fast weights, called by the autograd node.
#pragma once
#include <ATen/ATen.h>

#include <cstdint>

#include "model/mixers/fast_weights/fast_weights.h"
#include "model/mixers/fast_weights/inner_loss.h"

namespace lazy::fast_weights {

// Tells which optional tensors are defined. The flat list of the autograd node contains only defined tensors.
struct TensorSpec {
  size_t layers;
  bool norm, bias, momentum, tanh, rounded, last_state;
};

TensorSpec spec_of(const FastWeights& in);
// Pointers to the defined tensors of `in`, in the order of flatten().
std::vector<at::Tensor*> tensor_slots(FastWeights& in, const TensorSpec& spec);
std::vector<at::Tensor> flatten(const FastWeights& in);
// Inverse of flatten(): reads the first entries of `list`.
FastWeights unflatten(const std::vector<at::Tensor>& list, const TensorSpec& spec);

inline at::Tensor transposed(const at::Tensor& x) { return x.transpose(-1, -2); }

// Flattens all leading dimensions into one; x must be contiguous or the transpose of a contiguous tensor.
inline at::Tensor batch(const at::Tensor& x) { return x.dim() == 3 ? x : x.flatten(0, -3); }

inline at::Tensor product(const at::Tensor& a, const at::Tensor& b) {
  auto sizes = a.sizes().vec();
  sizes.back() = b.size(-1);
  return at::bmm(batch(a), batch(b)).view(sizes);
}

// Computes y = beta y + alpha a b in place.
inline void accumulate(const at::Tensor& y, const at::Tensor& a, const at::Tensor& b, double alpha = 1,
                       double beta = 1) {
  at::Tensor rows = batch(y);
  rows.baddbmm_(batch(a), batch(b), beta, alpha);
}

// Returns the sum of a * b over the columns, with shape (..., rows, 1).
inline at::Tensor row_dot(const at::Tensor& a, const at::Tensor& b) { return (a * b).sum(-1, /*keepdim=*/true); }
// Returns the sum of a * b over rows and columns, with shape (..., 1, 1).
inline at::Tensor block_dot(const at::Tensor& a, const at::Tensor& b) {
  return (a * b).sum(at::IntArrayRef{-2, -1}, /*keepdim=*/true);
}

// RAII guard that allows TF32 for fp32 products on a GPU.
class RoundedProducts {
 public:
  explicit RoundedProducts(bool rounded) : set_(rounded && !at::globalContext().allowTF32CuBLAS()) {
    if (set_) at::globalContext().setAllowTF32CuBLAS(true);
  }
  ~RoundedProducts() {
    if (set_) at::globalContext().setAllowTF32CuBLAS(false);
  }
  RoundedProducts(const RoundedProducts&) = delete;
  RoundedProducts& operator=(const RoundedProducts&) = delete;

 private:
  bool set_;
};

// Activations of all chunks, (C, N, ...), one entry per layer.
struct SavedActivations {
  std::vector<at::Tensor> W, b, S;  // the state at the start of each chunk
  std::vector<at::Tensor> u, g;     // input of each layer for k, and loss gradient with respect to the layer's output
  std::vector<at::Tensor> z;     // output of each layer for k; for the last layer without a norm: the prediction error
  std::vector<at::Tensor> t, x;  // loss gradient at the activation, and layer output for q; not for the last layer
  at::Tensor overlap, kept;      // only for the fused kernels, see ops/fast_weights_problem.h; otherwise undefined
};

// Converts `activations` to a flat list of tensors and back.
std::vector<at::Tensor> flatten(const SavedActivations& activations);
SavedActivations unflatten_activations(const std::vector<at::Tensor>& list, const TensorSpec& spec);

// for_backward: whether to fill `activations` for the backward pass.
FastWeightsResult forward(const FastWeights& in, const TensorSpec& spec, SavedActivations& activations,
                          bool for_backward);

inline Gelu gelu_of(const TensorSpec& spec) { return {.tanh = spec.tanh}; }

// Returns the gradients with respect to all tensors of `in` as a FastWeights. `d` contains the gradients of the
// results, all of which must be defined.
FastWeights backward(const FastWeights& in, const TensorSpec& spec, const SavedActivations& activations,
                     const FastWeightsResult& d);

}  // namespace lazy::fast_weights
