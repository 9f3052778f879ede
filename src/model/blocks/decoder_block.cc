#include "model/blocks/decoder_block.h"

#include <ATen/ATen.h>

#include "model/blocks/rms_norm.h"
#include "model/blocks/swiglu.h"

namespace lazy {

DecoderBlock::DecoderBlock(const ModelConfig& c, at::Device device)
    : attention_norm(
          at::ones({c.hidden_size}, at::TensorOptions().dtype(at::kFloat).device(device)).requires_grad_(true)),
      mlp_norm(at::ones({c.hidden_size}, at::TensorOptions().dtype(at::kFloat).device(device)).requires_grad_(true)),
      attention(c, device),
      gate_up(c.hidden_size, {c.intermediate(), c.intermediate()}, device),
      down(c.intermediate(), {c.hidden_size}, device),
      norm_eps_(c.norm_eps) {}

at::Tensor DecoderBlock::forward(const at::Tensor& x, RotaryTable& table, int64_t layer, const ForwardOptions& options,
                                 at::Tensor* stats) const {
  const at::Tensor mixed = x + attention.forward(rms_norm(x, attention_norm, norm_eps_), table, layer, options, stats);
  const auto gate_and_up = gate_up.forward(rms_norm(mixed, mlp_norm, norm_eps_));
  return mixed + down.forward(swiglu(gate_and_up[0], gate_and_up[1]))[0];
}

}  // namespace lazy
