#include "sinks/attention_maps.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <cmath>

#include "core/error.h"
#include "model/activation_hooks.h"
#include "model/checkpoint.h"
#include "model/config.h"
#include "model/families/families.h"
#include "model/forward_options.h"
#include "model/language_model.h"
#include "model/parameters.h"
#include "ops/attention_weights.h"
#include "sinks/probe_measures.h"

namespace lazy::sinks {

namespace {

// Returns the lower triangle of a (length, length) matrix.
WeightRows causal_rows(const at::Tensor& weights) {
  const at::Tensor wide = weights.to(at::kCPU, at::kDouble).contiguous();
  WeightRows rows;
  for (int64_t i = 0; i < wide.size(0); ++i) {
    const double* row = wide.data_ptr<double>() + i * wide.size(1);
    rows.emplace_back(row, row + i + 1);
  }
  return rows;
}

// Computes the weights of one head with the float64 reference implementation. q, k: (length, head_dim).
WeightRows head_weights(LanguageModel& model, int64_t layer, int64_t head, const at::Tensor& q, const at::Tensor& k) {
  ops::AttentionTerms terms = model.attention_terms(layer);
  for (at::Tensor* t : {&terms.distance_bias, &terms.tau, &terms.options.sink, &terms.options.alibi_slopes}) {
    if (t->defined()) *t = t->narrow(0, head, 1);
  }
  const auto one_head = [](const at::Tensor& t) { return t.unsqueeze(0).unsqueeze(2); };
  return causal_rows(ops::reference_weights(one_head(q), one_head(k), terms)[0][0]);
}

}  // namespace

bool needs_matrices(const ActivationHooks& probes, const ModelConfig& config) {
  if (config.positions.kind == PositionKind::transformer_xl) return true;
  for (int64_t layer = 0; layer < config.num_layers; ++layer) {
    if (probes.wants(layer, "attention.scores") || probes.wants(layer, "attention.weights")) return true;
  }
  return false;
}

std::vector<WeightRows> attention_weights(LanguageModel& model, const at::Tensor& ids,
                                          const std::vector<std::pair<int64_t, int64_t>>& heads,
                                          const ActivationHooks* probes) {
  const at::NoGradGuard no_grad;
  const ModelConfig& config = model.config();
  std::vector<WeightRows> result(heads.size());
  ForwardOptions options;
  ActivationHooks all = probes ? *probes : ActivationHooks();
  const bool matrices = needs_matrices(all, config);
  if (matrices) {
    all.read("layers.*.attention.weights", [&](const std::string& name, const at::Tensor& weights) {
      for (size_t n = 0; n < heads.size(); ++n) {
        if (heads[n].first == layer_of(name)) result[n] = causal_rows(weights[0][heads[n].second]);
      }
    });
  }
  options.activation_hooks = all.or_null();
  const auto from_input = [&](int64_t layer, const at::Tensor& q, const at::Tensor& k) {
    for (size_t n = 0; n < heads.size(); ++n) {
      if (heads[n].first != layer) continue;
      const int64_t head = heads[n].second,
                    kv_head = head / (config.attention.num_heads / config.attention.num_kv_heads);
      result[n] = head_weights(model, layer, head, q.select(0, 0).select(1, head), k.select(0, 0).select(1, kv_head));
    }
  };
  if (!matrices) options.on_attention_input = from_input;
  for (const auto& [layer, head] : heads) {
    if (layer < 0 || layer >= config.num_layers || head < 0 || head >= config.attention.num_heads) {
      fail("sinks", "layer {}, head {}: expected layers 0 to {} and heads 0 to {}", layer, head, config.num_layers - 1,
           config.attention.num_heads - 1);
    }
  }
  model.forward(ids.reshape({1, -1}).to(model.device()), options);
  return result;
}

namespace {

std::vector<double> row_of(const at::Tensor& tensor) {
  const at::Tensor values = tensor.to(at::kDouble).contiguous();
  return {values.data_ptr<double>(), values.data_ptr<double>() + values.numel()};
}

}  // namespace

LearnedParameters learned_parameters(const std::filesystem::path& directory) {
  LearnedParameters result;
  ModelConfig config = ModelConfig::from_directory(directory);
  result.tau_initial = config.attention.offset_init;
  const bool alibi = config.positions.kind == PositionKind::alibi, biased = config.attention.distance_bias_window > 0;
  if ((!config.has_offset() && !biased && !alibi) || !config.attends()) return result;
  if (family_of(config) && !config.converted) return result;
  const std::unique_ptr<WeightsFile> file = open_weights(directory);
  if (!has_weight(*file, "lm_head.weight")) config.tie_embeddings = true;
  const auto stored = match_weights(*file, directory, config);
  const CheckpointNames names(config);
  for (int64_t layer = 0; layer < config.num_layers; ++layer) {
    const bool attends = config.mixer_of(layer) == MixerType::attention;
    const auto tensor = [&](const std::string& name) { return file->tensor(stored.at(names.layer(layer) + name)); };
    const auto row = [&](const std::string& name) { return attends ? row_of(tensor(name)) : std::vector<double>(); };
    if (config.has_offset()) result.tau.push_back(row(names.offset));
    if (alibi) result.alibi_slopes.push_back(row(names.slopes));
    if (!biased) continue;
    result.distance_bias.emplace_back();
    if (!attends) continue;
    const at::Tensor table = tensor(names.distance_bias);
    for (int64_t head = 0; head < table.size(0); ++head) result.distance_bias.back().push_back(row_of(table[head]));
  }
  return result;
}

}  // namespace lazy::sinks
