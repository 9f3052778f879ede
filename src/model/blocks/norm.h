// Norms, and the residual stream that they normalize.
#pragma once
#include <ATen/core/Tensor.h>

#include <utility>

namespace lazy {

class LayerHooks;
struct ModelConfig;

// The residual stream between layers is the sum branch + residual. The addition is deferred, because the next norm's
// kernel fuses it.
struct ResidualStream {
  at::Tensor branch;    // (batch, length, hidden_size) in the compute precision
  at::Tensor residual;  // the same shape; undefined before the first layer
};

// The output of a norm together with the inputs of the norm. A GPU layer that needs the norm's output in its backward
// pass saves the norm's inputs and recomputes the output from them. This saves memory, because the norm itself saves
// its inputs in any case.
struct NormOutput {
  NormOutput(at::Tensor value) : value(std::move(value)) {}  // NOLINT: implicit conversion from any tensor
  NormOutput(at::Tensor value, at::Tensor from, at::Tensor weight, double eps, at::Tensor bias = {})
      : value(std::move(value)), from(std::move(from)), weight(std::move(weight)), bias(std::move(bias)), eps(eps) {}

  at::Tensor value;         // (..., dim); undefined if `pending`
  at::Tensor from, weight;  // value = rms_norm(from, weight, eps); undefined if `value` is not the output of a norm
  // True if the norm has not been computed: the mixer or MLP that gets this NormOutput computes it inside its matrix
  // product (ops::skinny_gemm). Its result must then be the new residual stream, `from` plus the output of the mixer or
  // MLP; the last matrix product adds `from` (Linear::forward_add_residual).
  bool pending = false;
  at::Tensor bias;  // bias of a LayerNorm; undefined: RMSNorm
  double eps = 0;

  at::IntArrayRef sizes() const { return value.defined() ? value.sizes() : from.sizes(); }

  // Returns the tensors to save for the backward pass: (from, weight) for an RMSNorm on a GPU, otherwise (value,
  // undefined).
  std::pair<at::Tensor, at::Tensor> saved_for_backward() const {
    if (from.defined() && !bias.defined() && value.is_cuda()) return {from, weight};
    return {value, at::Tensor()};
  }
};

// Returns the norm's output, (N, dim), from the tensors of saved_for_backward(). It is not differentiable.
at::Tensor recompute_norm(const at::Tensor& saved, const at::Tensor& weight, double eps);

// The weights of a norm in fp32: only `weight` for RMSNorm, `weight` and `bias` for LayerNorm.
struct NormWeights {
  at::Tensor weight, bias;   // (dim); both undefined: no norm
  bool unit_offset = false;  // true: the norm multiplies by 1 + weight instead of weight

  at::Tensor factor() const;  // returns weight or 1 + weight; differentiable
};
NormWeights make_norm(const ModelConfig& config, at::Device device);

// Returns norm(branch + residual). The sum becomes the stream's new residual.
NormOutput normalize(ResidualStream& stream, const NormWeights& norm, double eps);
// Like normalize, but leaves the norm to the mixer or MLP if possible: returns a NormOutput with `pending` set. This is
// possible for RMSNorm on a GPU with a small batch and without gradients.
NormOutput normalize_later(ResidualStream& stream, const NormWeights& norm, double eps);
at::Tensor sum_of(const ResidualStream& stream);
// Runs the activation hooks of `point` on the sum branch + residual. If a hook replaces the sum, the replacement
// becomes the stream.
void run_residual_hooks(ResidualStream& stream, const LayerHooks& hooks, const char* point);

}  // namespace lazy
