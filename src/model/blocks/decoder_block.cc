#include "model/blocks/decoder_block.h"

#include <ATen/ATen.h>

#include "model/blocks/mlp.h"
#include "ops/rms_norm.h"

namespace lazy {

DecoderBlock::DecoderBlock(const ModelConfig& c, int64_t layer, at::Device device)
    : mixer(make_mixer(c, layer, device)), norm_eps_(c.norm_eps) {
  const auto options = at::TensorOptions().dtype(at::kFloat).device(device);
  mixer_norm = at::ones({c.hidden_size}, options).requires_grad_(true);
  if (!c.mlp) return;
  mlp_norm = at::ones({c.hidden_size}, options).requires_grad_(true);
  gate_up = Linear(c.hidden_size, {c.intermediate(), c.intermediate()}, device);
  down = Linear(c.intermediate(), {c.hidden_size}, device);
}

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
  mix(stream, layer, options, stats);
  feed_forward(stream);
}

void DecoderBlock::mix(Stream& stream, int64_t layer, const ForwardOptions& options, at::Tensor* stats) const {
  stream.branch = mixer->forward(normalize(stream, mixer_norm, norm_eps_), layer, options, stats);
}

void DecoderBlock::feed_forward(Stream& stream, bool recompute) const {
  if (!mlp_norm.defined()) return;
  stream.branch = mlp(gate_up, down, normalize(stream, mlp_norm, norm_eps_), recompute);
}

}  // namespace lazy
