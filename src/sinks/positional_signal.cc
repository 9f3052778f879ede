#include "sinks/positional_signal.h"

#include <ATen/ATen.h>

#include "core/error.h"
#include "model/activation_hooks.h"
#include "model/forward_options.h"
#include "model/mixers/mixer.h"

namespace lazy::sinks {

namespace {

// Runs a forward pass over `ids` with the activation at `place` replaced by `value` and returns the activation at
// `read`.
at::Tensor computed_from(LanguageModel& model, const at::Tensor& ids, const char* place, const at::Tensor& value,
                         const std::string& read) {
  const at::NoGradGuard no_grad;
  at::Tensor result;
  ActivationHooks probes;
  probes.replace(place, [&](const std::string&, const at::Tensor&) { return value; });
  probes.read(read, [&](const std::string&, const at::Tensor& tensor) { result = tensor.to(at::kFloat); });
  ForwardOptions options;
  options.activation_hooks = &probes;
  model.forward(ids, options);
  return result;
}

at::Tensor zero_ids(const LanguageModel& model, int64_t batch, int64_t length) {
  return at::zeros({batch, length}, at::TensorOptions().dtype(at::kLong).device(model.device()));
}

}  // namespace

const char* name(EffectivePositions variant) {
  constexpr const char* names[] = {"literal", "normed", "block"};
  return names[static_cast<size_t>(variant)];
}

at::Tensor position_vectors(LanguageModel& model) {
  const ModelConfig& config = model.config();
  if (config.positions.kind != PositionKind::learned)
    fail("sinks", "effective positions: expected a model with learned positions, found {}",
         name(config.positions.kind));
  const at::NoGradGuard no_grad;
  at::Tensor result;
  ActivationHooks probes;
  probes.read("embedding.positions",
              [&](const std::string&, const at::Tensor& tensor) { result = tensor.to(at::kFloat).squeeze(0); });
  ForwardOptions options;
  options.activation_hooks = &probes;
  model.forward(zero_ids(model, 1, config.max_length), options);
  return result;
}

at::Tensor effective_positions(LanguageModel& model, EffectivePositions variant) {
  const at::Tensor p = position_vectors(model);
  const ModelConfig& config = model.config();
  if (!config.mlp.enabled) fail("sinks", "effective positions: expected an MLP in the first layer, found none");
  if (variant == EffectivePositions::block) {
    const std::string after = config.num_layers > 1 ? "layers.1.residual" : "final.residual";
    return computed_from(model, zero_ids(model, p.size(0), 1), "embedding", p.unsqueeze(1), after).squeeze(1);
  }
  const char* place = variant == EffectivePositions::literal ? "layers.0.mlp.input" : "layers.0.middle";
  return p +
         computed_from(model, zero_ids(model, 1, p.size(0)), place, p.unsqueeze(0), "layers.0.mlp.output").squeeze(0);
}

namespace {

struct BiasAndKeys {
  at::Tensor bias;  // (heads, head_dim) float64
  at::Tensor keys;  // (heads, head_dim, hidden_size) float64; key heads are repeated so that each query head has one
};

BiasAndKeys bias_and_keys(const LanguageModel& model, int64_t layer) {
  const ModelConfig& c = model.config();
  const AttentionProjections p = model.projections(layer);
  const at::Tensor keys =
      p.k.detach().to(at::kCPU, at::kDouble).view({c.attention.num_kv_heads, c.attention.head_dim, c.hidden_size});
  return {p.q_bias.detach().to(at::kCPU, at::kDouble).view({c.attention.num_heads, c.attention.head_dim}),
          keys.repeat_interleave(c.attention.num_heads / c.attention.num_kv_heads, 0)};
}

}  // namespace

void require_query_bias(const LanguageModel& model) {
  const ModelConfig& c = model.config();
  if (!c.all_attention() || c.rotates() || c.attention.qk_norm || !model.projections(0).q_bias.defined()) {
    fail("sinks",
         "the query bias: expected attention with biases and queries without RoPE and normalization (GPT-2), found {}",
         c.rotates()           ? "queries with RoPE"
         : c.attention.qk_norm ? "normalized queries"
         : !c.all_attention()  ? std::string(name(c.mixer.type))
                               : std::string("no bias"));
  }
}

at::Tensor gamma_by_head(const LanguageModel& model, int64_t layer) {
  const auto [bias, keys] = bias_and_keys(model, layer);
  return at::matmul(bias.unsqueeze(1), keys).squeeze(1);
}

at::Tensor delta_by_head(const LanguageModel& model, int64_t layer, const at::Tensor& input) {
  return at::matmul(input.to(at::kCPU, at::kDouble), gamma_by_head(model, layer).t());
}

at::Tensor alignment(const LanguageModel& model, int64_t layer, const at::Tensor& rows) {
  const auto [bias, keys] = bias_and_keys(model, layer);
  const at::Tensor b = bias.reshape({-1}),
                   k = at::matmul(rows.to(at::kCPU, at::kDouble), keys.reshape({b.size(0), -1}).t());
  return at::matmul(k, b) / (k.norm(2, {1}) * b.norm()).clamp_min(1e-300);
}

}  // namespace lazy::sinks
