// One pre-norm decoder layer: x += mixer(norm(x)); x += down(swiglu(gate_up(norm(x)))). Mamba2 has no second half.
#pragma once
#include <ATen/core/Tensor.h>

#include <memory>

#include "model/blocks/linear.h"
#include "model/mixers/mixer.h"
#include "model/probes.h"

namespace lazy {

// The residual stream between layers, its last addition not yet carried out: the next norm adds while it reads.
struct Stream {
  at::Tensor branch;    // (batch, length, hidden_size) in the computing precision
  at::Tensor residual;  // the same, or undefined before the first layer
};

// norm(branch + residual); the sum becomes the stream's residual.
Normalized normalize(Stream& stream, const at::Tensor& weight, double eps);
// Shows the sum to whoever asked for it; a replacement becomes the stream.
void look(Stream& stream, const LayerProbes& probe, const char* place);

class DecoderBlock {
 public:
  DecoderBlock(const ModelConfig& config, int64_t layer, at::Device device);
  void forward(Stream& stream, int64_t layer, const ForwardOptions& options, at::Tensor* stats) const;
  // Its two halves.
  void mix(Stream& stream, int64_t layer, const ForwardOptions& options, at::Tensor* stats) const;
  void feed_forward(Stream& stream, int64_t layer, const ForwardOptions& options, bool recompute = false) const;  // recompute: see mlp.h

  at::Tensor mixer_norm, mlp_norm;  // (hidden_size) fp32; mlp_norm is undefined without an MLP
  std::unique_ptr<Mixer> mixer;
  Linear gate_up, down;  // parts: gate_proj, up_proj; down_proj

 private:
  const char *input_, *output_;  // the first half's places for probes
  double norm_eps_;
};

}  // namespace lazy
