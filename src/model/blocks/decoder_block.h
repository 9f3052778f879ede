// One decoder layer: x += mixer(norm(x)); x += mlp(norm(x)); with post-norm x = norm(x + mixer(x)); x = norm(x +
// mlp(x)). Mamba2 has no second half.
#pragma once
#include <ATen/core/Tensor.h>

#include <memory>

#include "model/blocks/feed_forward.h"
#include "model/mixers/mixer.h"
#include "model/probes.h"

namespace lazy {

// The residual stream between layers, its last addition not yet carried out: the next norm adds while it reads.
struct Stream {
  at::Tensor branch;    // (batch, length, hidden_size) in the computing precision
  at::Tensor residual;  // the same, or undefined before the first layer
};

// Weights of a norm, fp32: RMSNorm's, or LayerNorm's, which has a bias.
struct NormWeights {
  at::Tensor weight, bias;  // (dim); bias undefined: RMSNorm. Both undefined: no norm
};
NormWeights make_norm(const ModelConfig& config, at::Device device);

// norm(branch + residual); the sum becomes the stream's residual.
NormOutput normalize(Stream& stream, const NormWeights& norm, double eps);
at::Tensor sum_of(const Stream& stream);
// Shows the sum to whoever asked for it; a replacement becomes the stream.
void probe_residual(Stream& stream, const LayerProbes& probe, const char* place);

class DecoderBlock {
 public:
  DecoderBlock(const ModelConfig& config, int64_t layer, at::Device device);
  void forward(Stream& stream, int64_t layer, const ForwardOptions& options, at::Tensor* stats) const;
  // Its two halves.
  void mix(Stream& stream, int64_t layer, const ForwardOptions& options, at::Tensor* stats) const;
  // `recompute`: see feed_forward.h.
  void feed_forward(Stream& stream, int64_t layer, const ForwardOptions& options, bool recompute = false) const;

  NormWeights mixer_norm, mlp_norm;
  std::unique_ptr<Mixer> mixer;
  std::unique_ptr<FeedForward> mlp;  // null: none

 private:
  // What a half reads; what becomes of its result.
  NormOutput before(Stream& stream, const NormWeights& norm) const;
  void after(Stream& stream, const NormWeights& norm, at::Tensor branch) const;

  const char *input_, *output_;  // the first half's places for probes
  double norm_eps_;
  bool post_norm_;
};

}  // namespace lazy
