// The forward and backward pass of fast weights, called by the autograd node.
#pragma once
#include <ATen/ATen.h>

#include <cstdint>

#include "model/mixers/fast_weights/fast_weights.h"
#include "model/mixers/fast_weights/inner_loss.h"

namespace lazy::fast_weights {

// The number of layers and the flags of a FastWeights, and which of its optional tensors are defined. This information
// is needed because the autograd node stores only the defined tensors, in a flat list.
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

// Flattens all dimensions except the last two into one. x must be contiguous or the transpose of a contiguous tensor.
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

// Activations of all chunks, with one entry per layer. Shapes (C, N, ...): C chunks, N sequences times heads.
struct SavedActivations {
  // The state at the start of each chunk.
  std::vector<at::Tensor> W, b, S;
  // Values for the model's input k: u is the input of the layer, and g is the gradient of the loss with respect to the
  // output of the layer.
  std::vector<at::Tensor> u, g;
  // The output of the layer for the model's input k. In the last layer of a model without a norm, z is the prediction
  // error instead.
  std::vector<at::Tensor> z;
  // t: for the input k, the gradient of the inner loss with respect to the layer's output after GELU. x: for the input
  // q, the layer's output after GELU. The last layer, which has no GELU, has neither.
  std::vector<at::Tensor> t, x;
  // Tensors of the fused kernels (ops/fast_weights_problem.h). Undefined if batched matrix products are used.
  at::Tensor overlap, kept;
};

// Converts `activations` to a flat list of tensors and back.
std::vector<at::Tensor> flatten(const SavedActivations& activations);
SavedActivations unflatten_activations(const std::vector<at::Tensor>& list, const TensorSpec& spec);

// Computes the outputs and the state after the last chunk, with `activations` as working memory. If `for_backward` is
// true, `activations` then contains all tensors that backward() reads.
FastWeightsResult forward(const FastWeights& in, const TensorSpec& spec, SavedActivations& activations,
                          bool for_backward);

inline Gelu gelu_of(const TensorSpec& spec) { return {.tanh = spec.tanh}; }

// Returns the gradients with respect to all tensors of `in` as a FastWeights. `d` contains the gradients of the
// results, all of which must be defined.
FastWeights backward(const FastWeights& in, const TensorSpec& spec, const SavedActivations& activations,
                     const FastWeightsResult& d);

}  // namespace lazy::fast_weights
