// One decoder layer: x += mixer(norm(x)); x += mlp(norm(x)); with post-norm x = norm(x + mixer(x)); x = norm(x +
// mlp(x)). Mamba2 has no second half.
#pragma once
#include <ATen/core/Tensor.h>

#include <memory>

#include "model/blocks/mlp.h"
#include "model/blocks/norm.h"
#include "model/mixers/mixer.h"

namespace lazy {

class DecoderBlock {
 public:
  DecoderBlock(const ModelConfig& config, int64_t layer, at::Device device);
  void forward(ResidualStream& stream, int64_t layer, const ForwardOptions& options, at::Tensor* stats) const;
  // Its two halves.
  void mix(ResidualStream& stream, int64_t layer, const ForwardOptions& options, at::Tensor* stats) const;
  // `recompute`: see mlp.h.
  void feed_forward(ResidualStream& stream, int64_t layer, const ForwardOptions& options, bool recompute = false) const;

  NormWeights mixer_norm, mlp_norm;
  std::unique_ptr<Mixer> mixer;
  std::unique_ptr<FeedForward> mlp;  // null: none

 private:
  // The input of a half, and the stream after its output `branch`, for pre-norm and post-norm models.
  NormOutput pre_norm(ResidualStream& stream, const NormWeights& norm) const;
  void post_norm(ResidualStream& stream, const NormWeights& norm, at::Tensor branch) const;

  const char *input_, *output_;  // hook points of the first half
  double norm_eps_;
  bool post_norm_;
};

}  // namespace lazy
