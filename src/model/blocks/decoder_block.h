// One pre-norm decoder layer: x += mixer(norm(x)); x += down(swiglu(gate_up(norm(x)))).
#pragma once
#include <ATen/core/Tensor.h>

#include "model/blocks/linear.h"
#include "model/mixers/attention.h"

namespace lazy {

class DecoderBlock {
 public:
  DecoderBlock(const ModelConfig& config, at::Device device);
  // x (batch, length, hidden_size), the residual stream in the computing precision.
  at::Tensor forward(const at::Tensor& x, RotaryTable& table, int64_t layer, const ForwardOptions& options,
                     at::Tensor* stats) const;

  at::Tensor attention_norm, mlp_norm;  // (hidden_size) fp32
  AttentionMixer attention;
  Linear gate_up, down;  // parts: gate_proj, up_proj; down_proj

 private:
  double norm_eps_;
};

}  // namespace lazy
