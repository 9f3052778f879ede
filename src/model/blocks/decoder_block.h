// A decoder layer, the token mixer and the MLP on the residual stream. Pre-norm: x += mixer(norm(x)); x +=
// mlp(norm(x)). Post-norm: x = norm(x + mixer(x)); x = norm(x + mlp(x)). Branch norm (OLMo 2):
// x += norm(mixer(x)); x += norm(mlp(x)). Sandwich norm (Gemma 2 and 3): x += norm'(mixer(norm(x)));
// x += norm'(mlp(norm(x))). Mamba2 layers have no MLP.
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
  // The mixer half and the MLP half.
  void mix(ResidualStream& stream, int64_t layer, const ForwardOptions& options, at::Tensor* stats) const;
  // `recompute`: see mlp.h.
  void feed_forward(ResidualStream& stream, int64_t layer, const ForwardOptions& options, bool recompute = false) const;

  // The layer as one kernel computes it with the others. Returns false where it is another one.
  bool describe(ops::StepLayer& layer, const ForwardOptions& options) const;

  NormWeights mixer_norm, mlp_norm;
  NormWeights mixer_output_norm, mlp_output_norm;  // sandwich norm: of the output of each half
  std::unique_ptr<Mixer> mixer;
  std::unique_ptr<FeedForward> mlp;  // null: none

 private:
  // The input of a half, and the update of the stream by its output `branch`, for each placement of the norms.
  // later: the reader takes a pending norm.
  NormOutput pre_norm(ResidualStream& stream, const NormWeights& norm, bool later) const;
  // branch: what the reader of x, the output of pre_norm, returned.
  void add_branch(ResidualStream& stream, const NormOutput& x, const NormWeights& norm, const NormWeights& output_norm,
                  at::Tensor branch) const;

  const char *input_, *output_;  // hook point names of the mixer half
  double norm_eps_;
  bool post_norm_, branch_norm_;
  double multiplier_;  // of branches
};

}  // namespace lazy
