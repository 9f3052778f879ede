// A decoder layer: the token mixer and the MLP on the residual stream x.
//   pre-norm                      x += mixer(norm(x));        x += mlp(norm(x))
//   post-norm                     x = norm(x + mixer(x));     x = norm(x + mlp(x))
//   branch norm (OLMo 2)          x += norm(mixer(x));        x += norm(mlp(x))
//   sandwich norm (Gemma 2, 3)    x += norm'(mixer(norm(x))); x += norm'(mlp(norm(x)))
// Mamba2 layers have no MLP.
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
  // Applies only the mixer, with its norms and the residual addition.
  void mix(ResidualStream& stream, int64_t layer, const ForwardOptions& options, at::Tensor* stats) const;
  // Applies only the MLP, with its norms and the residual addition. If `recompute` is true, the backward pass
  // recomputes intermediate activations of the MLP, which are then not saved.
  void feed_forward(ResidualStream& stream, int64_t layer, const ForwardOptions& options, bool recompute = false) const;

  // Writes the weights and the parameters of this layer to `layer`, an argument of the fused decode kernel
  // (ops/fused_decode_layers.h). Returns false if that kernel does not support this layer.
  bool describe(ops::FusedDecodeLayer& layer, const ForwardOptions& options) const;

  NormWeights mixer_norm, mlp_norm;
  NormWeights mixer_output_norm,
      mlp_output_norm;  // only with sandwich norm: norms of the mixer's and of the MLP's output
  std::unique_ptr<Mixer> mixer;
  std::unique_ptr<FeedForward> mlp;  // null: no MLP

 private:
  // Returns the input of the mixer or of the MLP: the normalized residual stream with pre-norm and sandwich norm,
  // otherwise the residual stream itself. If `later` is true, the mixer or the MLP can apply the norm itself, so the
  // function may return a NormOutput with `pending` set, to which the norm has not been applied.
  NormOutput pre_norm(ResidualStream& stream, const NormWeights& norm, bool later) const;
  // Adds `branch`, the output of the mixer or of the MLP, to the residual stream. `x`, the result of pre_norm(), was
  // the input of this mixer or MLP.
  void add_branch(ResidualStream& stream, const NormOutput& x, const NormWeights& norm, const NormWeights& output_norm,
                  at::Tensor branch) const;

  const char *input_, *output_;  // names of the hook points at the mixer's input and output
  double norm_eps_;
  bool post_norm_, branch_norm_;
  double multiplier_;  // the outputs of mixer and MLP are multiplied by it before they are added to the stream
};

}  // namespace lazy
