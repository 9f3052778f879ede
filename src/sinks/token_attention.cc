#include "sinks/token_attention.h"

#include <ATen/ATen.h>

#include <limits>

#include "core/error.h"
#include "model/activation_hooks.h"
#include "model/forward_options.h"
#include "ops/attention_weights.h"
#include "sinks/attention_maps.h"
#include "sinks/probe_measures.h"

namespace lazy::sinks {

TokenAttention token_attention(LanguageModel& model, const at::Tensor& ids, int64_t first, bool statistics_only) {
  const at::NoGradGuard no_grad;
  const ModelConfig& config = model.config();
  const int64_t length = ids.numel();
  if (config.num_attention_layers() == 0)
    fail("sinks", "expected a model with attention, found {}", name(config.mixer_of(0)));
  if (first < 0 || first >= length) fail("sinks", "first: expected 0 to {}, found {}", length - 1, first);
  TokenAttention out;
  out.weights.resize(static_cast<size_t>(config.num_layers));
  ActivationHooks hooks;
  ForwardOptions options{.return_stats = true};
  if (!statistics_only && needs_matrices(hooks, config)) {
    hooks.read("layers.*.attention.weights", [&](const std::string& name, const at::Tensor& weights) {
      out.weights[static_cast<size_t>(layer_of(name))] = weights[0].select(1, length - 1).to(at::kFloat);
    });
    options.activation_hooks = &hooks;
  } else if (!statistics_only) {
    options.on_attention_input = [&](int64_t layer, const at::Tensor& q, const at::Tensor& k) {
      const ops::AttentionTerms terms = model.attention_terms(layer);
      const at::Tensor scores = ops::attention_scores(q.narrow(1, length - 1, 1), k, terms, length - 1);
      out.weights[static_cast<size_t>(layer)] = ops::normalized_weights(scores, terms)[0].select(1, 0);
    };
  }
  const ForwardResult result = model.forward(ids.reshape({1, -1}).to(model.device()), options);
  const at::Tensor none =
      at::full({3, config.attention.num_heads, length - first}, std::numeric_limits<float>::quiet_NaN(), at::kFloat);
  std::vector<at::Tensor> layers;
  for (int64_t layer = 0; layer < config.num_layers; ++layer) {
    const at::Tensor& stats = result.stats.at(static_cast<size_t>(layer));  // (3, 1, heads, length)
    layers.push_back(stats.defined() ? stats.select(1, 0).narrow(2, first, length - first).to(at::kCPU, at::kFloat)
                                     : none);
  }
  out.statistics = at::stack(layers, 1).permute({0, 3, 1, 2}).contiguous();
  return out;
}

}  // namespace lazy::sinks
