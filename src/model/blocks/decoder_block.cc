#include "model/blocks/decoder_block.h"

#include <ATen/ATen.h>

#include "model/forward_options.h"
#include "model/kv_cache.h"
#include "ops/rms_norm.h"

namespace lazy {

DecoderBlock::DecoderBlock(const ModelConfig& c, int64_t layer, at::Device device)
    : mixer(make_mixer(c, layer, device)),
      input_(c.mixer_of(layer) == MixerType::attention ? "attention.input" : "mixer.input"),
      output_(c.mixer_of(layer) == MixerType::attention ? "attention.output" : "mixer.output"),
      norm_eps_(c.norm.eps),
      post_norm_(c.norm.post_norm) {
  mixer_norm = make_norm(c, device);
  if (!c.mlp.enabled) return;
  mlp_norm = make_norm(c, device);
  mlp = make_feed_forward(c, device);
}

NormWeights make_norm(const ModelConfig& c, at::Device device) {
  const auto options = at::TensorOptions().dtype(at::kFloat).device(device);
  NormWeights norm{at::ones({c.hidden_size}, options).requires_grad_(true), {}};
  if (c.norm.kind == NormKind::layer) norm.bias = at::zeros({c.hidden_size}, options).requires_grad_(true);
  return norm;
}

NormOutput normalize(Stream& stream, const NormWeights& norm, double eps) {
  const at::Tensor& weight = norm.weight;
  if (norm.bias.defined()) {
    stream.residual = sum_of(stream);
    const at::Tensor& x = stream.residual;
    const at::Tensor y = at::layer_norm(x.to(at::kFloat), weight.sizes(), weight, norm.bias, eps).to(x.scalar_type());
    return {y, x, weight, eps, norm.bias};
  }
  if (!stream.residual.defined()) {
    stream.residual = stream.branch;
    return {ops::rms_norm(stream.branch, weight, eps), stream.residual, weight, eps};
  }
  auto [y, sum] = ops::add_rms_norm(stream.branch, stream.residual, weight, eps);
  stream.residual = sum;
  return {y, sum, weight, eps};
}

at::Tensor sum_of(const Stream& stream) {
  return stream.residual.defined() ? stream.branch + stream.residual : stream.branch;
}

void probe_residual(Stream& stream, const LayerProbes& probe, const char* place) {
  if (!probe.wants(place)) return;
  const at::Tensor sum = sum_of(stream), seen = probe(place, sum);
  if (!seen.is_same(sum)) stream = {seen, {}};
}

namespace {

// What a probe made of a norm's result can no longer be made from what the norm read.
NormOutput seen(const NormOutput& x, const LayerProbes& probe, const char* place) {
  if (!probe) return x;
  const at::Tensor value = probe(place, x.value);
  return value.is_same(x.value) ? x : NormOutput(value);
}

}  // namespace

NormOutput DecoderBlock::before(Stream& stream, const NormWeights& norm) const {
  if (!post_norm_) return normalize(stream, norm, norm_eps_);
  stream.residual = stream.branch;
  return stream.branch;
}

void DecoderBlock::after(Stream& stream, const NormWeights& norm, at::Tensor branch) const {
  stream.branch = std::move(branch);
  if (post_norm_) stream = {normalize(stream, norm, norm_eps_).value, {}};
}

void DecoderBlock::forward(Stream& stream, int64_t layer, const ForwardOptions& options, at::Tensor* stats) const {
  mix(stream, layer, options, stats);
  feed_forward(stream, layer, options);
}

void DecoderBlock::mix(Stream& stream, int64_t layer, const ForwardOptions& options, at::Tensor* stats) const {
  const LayerProbes probe(options.probes, layer);
  probe_residual(stream, probe, "residual");
  const NormOutput x = seen(before(stream, mixer_norm), probe, input_);
  after(stream, mixer_norm, probe(output_, mixer->forward(x, layer, options, stats)));
}

void DecoderBlock::feed_forward(Stream& stream, int64_t layer, const ForwardOptions& options, bool recompute) const {
  if (!mlp) return;
  const LayerProbes probe(options.probes, layer);
  probe_residual(stream, probe, "middle");
  const NormOutput x = seen(before(stream, mlp_norm), probe, "mlp.input");
  after(stream, mlp_norm, probe("mlp.output", mlp->forward(x, recompute)));
}

}  // namespace lazy
