// The result of a norm, and what it can be made from again: a GPU, whose memory is dear, keeps only the latter for the
// backward pass, because the norm saves it anyway.
#pragma once
#include <ATen/core/Tensor.h>

namespace lazy {

struct NormOutput {
  NormOutput(at::Tensor value) : value(std::move(value)) {}  // NOLINT: any tensor is an input
  NormOutput(at::Tensor value, at::Tensor from, at::Tensor weight, double eps, at::Tensor bias = {})
      : value(std::move(value)), from(std::move(from)), weight(std::move(weight)), bias(std::move(bias)), eps(eps) {}

  at::Tensor value;         // (..., dim)
  at::Tensor from, weight;  // value = rms_norm(from, weight, eps); undefined for other inputs
  at::Tensor bias;          // LayerNorm's, which value is then of
  double eps = 0;

  // What a backward pass keeps of it: the pair, or the value and nothing.
  std::pair<at::Tensor, at::Tensor> saved_for_backward() const {
    if (from.defined() && !bias.defined() && value.is_cuda()) return {from, weight};
    return {value, at::Tensor()};
  }
};

// The value, (N, dim), from what was kept of it. Without gradients.
at::Tensor recompute_norm(const at::Tensor& kept, const at::Tensor& weight, double eps);

}  // namespace lazy
