#include "model/blocks/decoder_block.h"

#include <ATen/ATen.h>

#include "model/blocks/mlp.h"
#include "ops/rms_norm.h"

namespace lazy {

DecoderBlock::DecoderBlock(const ModelConfig& c, int64_t layer, at::Device device)
    : attention_norm(
          at::ones({c.hidden_size}, at::TensorOptions().dtype(at::kFloat).device(device)).requires_grad_(true)),
      mlp_norm(at::ones({c.hidden_size}, at::TensorOptions().dtype(at::kFloat).device(device)).requires_grad_(true)),
      attention(c, layer, device),
      gate_up(c.hidden_size, {c.intermediate(), c.intermediate()}, device),
      down(c.intermediate(), {c.hidden_size}, device),
      norm_eps_(c.norm_eps) {}

Normalized normalize(Stream& stream, const at::Tensor& weight, double eps) {
  if (!stream.residual.defined()) {
    stream.residual = stream.branch;
    return {ops::rms_norm(stream.branch, weight, eps), stream.residual, weight, eps};
  }
  auto [y, sum] = ops::add_rms_norm(stream.branch, stream.residual, weight, eps);
  stream.residual = sum;
  return {y, sum, weight, eps};
}

void DecoderBlock::forward(Stream& stream, int64_t layer, const ForwardOptions& options, at::Tensor* stats) const {
  attend(stream, layer, options, stats);
  feed_forward(stream);
}

void DecoderBlock::attend(Stream& stream, int64_t layer, const ForwardOptions& options, at::Tensor* stats) const {
  stream.branch = attention.forward(normalize(stream, attention_norm, norm_eps_), layer, options, stats);
}

void DecoderBlock::feed_forward(Stream& stream, bool recompute) const {
  stream.branch = mlp(gate_up, down, normalize(stream, mlp_norm, norm_eps_), recompute);
}

}  // namespace lazy
