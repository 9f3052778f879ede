// Norms and the residual stream that they read.
#pragma once
#include <ATen/core/Tensor.h>

#include <utility>

namespace lazy {

class LayerHooks;
struct ModelConfig;

// The residual stream between layers. Its last addition is fused into the next norm: the stream is branch + residual.
struct ResidualStream {
  at::Tensor branch;    // (batch, length, hidden_size) in the compute precision
  at::Tensor residual;  // the same shape; undefined before the first layer
};

// The output of a norm, with the norm's own inputs. On GPUs a consumer saves the inputs instead of the output for its
// backward pass and recomputes the norm: the norm saves them anyway, so the output takes no memory.
struct NormOutput {
  NormOutput(at::Tensor value) : value(std::move(value)) {}  // NOLINT: any tensor is an input
  NormOutput(at::Tensor value, at::Tensor from, at::Tensor weight, double eps, at::Tensor bias = {})
      : value(std::move(value)), from(std::move(from)), weight(std::move(weight)), bias(std::move(bias)), eps(eps) {}

  at::Tensor value;         // (..., dim); undefined where `pending`
  at::Tensor from, weight;  // value = rms_norm(from, weight, eps); undefined for other inputs
  // The product that reads it computes the norm (ops::few_rows_product). Who reads it returns the stream: `from` with
  // its own output added, by its last product (Linear::onto_stream).
  bool pending = false;
  at::Tensor bias;  // of a LayerNorm; undefined: RMSNorm
  double eps = 0;

  at::IntArrayRef sizes() const { return value.defined() ? value.sizes() : from.sizes(); }

  // What a backward pass saves: (from, weight) of an RMSNorm on a GPU, else (value, undefined).
  std::pair<at::Tensor, at::Tensor> saved_for_backward() const {
    if (from.defined() && !bias.defined() && value.is_cuda()) return {from, weight};
    return {value, at::Tensor()};
  }
};

// The value, (N, dim), from what saved_for_backward() returned. Without gradients.
at::Tensor recompute_norm(const at::Tensor& saved, const at::Tensor& weight, double eps);

// Weights of a norm in fp32: weight alone for RMSNorm, with a bias for LayerNorm.
struct NormWeights {
  at::Tensor weight, bias;   // (dim); both undefined: no norm
  bool unit_offset = false;  // the factor is 1 + weight

  at::Tensor factor() const;  // differentiable in weight
};
NormWeights make_norm(const ModelConfig& config, at::Device device);

// norm(branch + residual); the sum becomes the stream's residual.
NormOutput normalize(ResidualStream& stream, const NormWeights& norm, double eps);
// The same, left to the reader, where it can be: RMSNorm of a few rows on a GPU, without gradients.
NormOutput normalize_later(ResidualStream& stream, const NormWeights& norm, double eps);
at::Tensor sum_of(const ResidualStream& stream);
// Runs the activation hooks of hook point `point` on the sum; a replacement becomes the stream.
void run_residual_hooks(ResidualStream& stream, const LayerHooks& hooks, const char* point);

}  // namespace lazy
