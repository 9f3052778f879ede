#include "sinks/query_bias.h"

#include <ATen/ATen.h>

#include "core/error.h"

namespace lazy::sinks {
namespace {

struct BiasAndKeys {
  at::Tensor bias;  // (heads, head_dim) float64
  at::Tensor keys;  // (heads, head_dim, hidden_size) float64: of grouped heads each query head's own
};

BiasAndKeys bias_and_keys(const LanguageModel& model, int64_t layer) {
  const ModelConfig& c = model.config();
  const AttentionProjections p = model.projections(layer);
  const at::Tensor keys = p.k.detach().to(at::kCPU, at::kDouble).view({c.num_kv_heads, c.head_dim, c.hidden_size});
  return {p.q_bias.detach().to(at::kCPU, at::kDouble).view({c.num_heads, c.head_dim}),
          keys.repeat_interleave(c.num_heads / c.num_kv_heads, 0)};
}

}  // namespace

void require_query_bias(const LanguageModel& model) {
  const ModelConfig& c = model.config();
  if (!c.all_attention() || c.rotates() || c.qk_norm || !model.projections(0).q_bias.defined()) {
    fail("sinks",
         "the query bias: expected attention with biases, and queries that are neither rotated nor normalized (GPT-2), "
         "found {}",
         c.rotates()          ? "rotated ones"
         : c.qk_norm          ? "normalized ones"
         : !c.all_attention() ? c.mixer
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
