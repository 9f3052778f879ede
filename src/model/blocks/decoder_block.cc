#include "model/blocks/decoder_block.h"

#include <ATen/ATen.h>

#include "model/activation_hooks.h"
#include "model/forward_options.h"

namespace lazy {

DecoderBlock::DecoderBlock(const ModelConfig& c, int64_t layer, at::Device device)
    : mixer(make_mixer(c, layer, device)),
      input_(c.mixer_of(layer) == MixerType::attention ? "attention.input" : "mixer.input"),
      output_(c.mixer_of(layer) == MixerType::attention ? "attention.output" : "mixer.output"),
      norm_eps_(c.norm.eps),
      post_norm_(c.norm.post_norm),
      branch_norm_(c.norm.branch_norm),
      multiplier_(c.multipliers.branch) {
  mixer_norm = make_norm(c, device);
  if (c.norm.sandwich_norm) mixer_output_norm = make_norm(c, device);
  if (!c.mlp.enabled) return;
  mlp_norm = make_norm(c, device);
  if (c.norm.sandwich_norm) mlp_output_norm = make_norm(c, device);
  mlp = make_feed_forward(c, device);
}

namespace {

// If a hook replaced the norm's output, that output can no longer be recomputed from the norm's inputs. The returned
// NormOutput therefore has no inputs.
NormOutput run_norm_hooks(const NormOutput& x, const LayerHooks& hooks, const char* point) {
  if (!hooks) return x;
  const at::Tensor value = hooks(point, x.value);
  return value.is_same(x.value) ? x : NormOutput(value);
}

}  // namespace

NormOutput DecoderBlock::pre_norm(ResidualStream& stream, const NormWeights& norm, bool later) const {
  if (branch_norm_) {
    stream = {sum_of(stream), {}};
  } else if (!post_norm_) {
    const bool adds_itself = multiplier_ == 1 && !mixer_output_norm.weight.defined();
    return later && adds_itself ? normalize_later(stream, norm, norm_eps_) : normalize(stream, norm, norm_eps_);
  }
  stream.residual = stream.branch;
  return stream.branch;
}

void DecoderBlock::add_branch(ResidualStream& stream, const NormOutput& x, const NormWeights& norm,
                              const NormWeights& output_norm, at::Tensor branch) const {
  if (branch_norm_ || output_norm.weight.defined()) {
    ResidualStream output{std::move(branch), {}};
    branch = normalize(output, branch_norm_ ? norm : output_norm, norm_eps_).value;
  }
  stream.branch = multiplier_ == 1 ? std::move(branch) : branch * multiplier_;
  if (x.pending) return;  // in this case, the branch already includes the residual stream
  if (post_norm_) stream = {normalize(stream, norm, norm_eps_).value, {}};
}

bool DecoderBlock::describe(ops::FusedDecodeLayer& layer, const ForwardOptions& options) const {
  if (post_norm_ || branch_norm_ || mixer_output_norm.weight.defined() || multiplier_ != 1 || !mlp ||
      mixer_norm.bias.defined() || mlp_norm.bias.defined())
    return false;
  layer.norm = mixer_norm.factor().detach();
  layer.mlp_norm = mlp_norm.factor().detach();
  return mixer->describe(layer, options) && mlp->describe(layer);
}

void DecoderBlock::forward(ResidualStream& stream, int64_t layer, const ForwardOptions& options,
                           at::Tensor* stats) const {
  mix(stream, layer, options, stats);
  feed_forward(stream, layer, options);
}

void DecoderBlock::mix(ResidualStream& stream, int64_t layer, const ForwardOptions& options, at::Tensor* stats) const {
  const LayerHooks hooks(options.activation_hooks, layer);
  run_residual_hooks(stream, hooks, "residual");
  const NormOutput x = run_norm_hooks(pre_norm(stream, mixer_norm, mixer->computes_norm(options)), hooks, input_);
  add_branch(stream, x, mixer_norm, mixer_output_norm, hooks(output_, mixer->forward(x, layer, options, stats)));
}

void DecoderBlock::feed_forward(ResidualStream& stream, int64_t layer, const ForwardOptions& options,
                                bool recompute) const {
  if (!mlp) return;
  const LayerHooks hooks(options.activation_hooks, layer);
  run_residual_hooks(stream, hooks, "middle");
  const NormOutput x = run_norm_hooks(
      pre_norm(stream, mlp_norm, !options.activation_hooks && !recompute && mlp->computes_norm()), hooks, "mlp.input");
  add_branch(stream, x, mlp_norm, mlp_output_norm, hooks("mlp.output", mlp->forward(x, recompute, hooks)));
}

}  // namespace lazy
