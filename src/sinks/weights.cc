#include "sinks/weights.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <cmath>

#include "core/error.h"
#include "lazy/attention.h"
#include "model/probes.h"
#include "sinks/weight_measures.h"

namespace lazy::sinks {
namespace {

kernels::Normalizer normalizer_of(const std::string& name) {
  using kernels::Normalizer;
  for (Normalizer n : {Normalizer::softmax, Normalizer::elastic, Normalizer::sparsemax, Normalizer::entmax15,
                       Normalizer::sigmoid, Normalizer::softmax_sink}) {
    if (name == kernels::name(n)) return n;
  }
  fail("sinks", "normalizer '{}': no definition of its weights", name);
}

// The lower triangle of (length, length).
WeightRows causal_rows(const at::Tensor& weights) {
  const at::Tensor wide = weights.to(at::kCPU, at::kDouble).contiguous();
  WeightRows rows;
  for (int64_t i = 0; i < wide.size(0); ++i) {
    const double* row = wide.data_ptr<double>() + i * wide.size(1);
    rows.emplace_back(row, row + i + 1);
  }
  return rows;
}

// With the identity as values, the attention output of query i is its row of weights.
WeightRows head_weights(LanguageModel& model, int64_t layer, int64_t head, const at::Tensor& q, const at::Tensor& k) {
  const ModelConfig& config = model.config();
  const int64_t length = q.size(0), dim = q.size(1);
  const at::Tensor q64 = q.to(at::kCPU, at::kDouble).contiguous(), k64 = k.to(at::kCPU, at::kDouble).contiguous();
  const at::Tensor identity = at::eye(length, at::kDouble), out = at::zeros({length, length}, at::kDouble),
                   lse = at::zeros({length}, at::kDouble);
  const auto of_head = [&](const at::Tensor& t) {
    return t.defined() ? t.detach()[head].to(at::kCPU, at::kDouble).contiguous() : t;
  };
  const auto data = [](const at::Tensor& t) { return t.defined() ? t.data_ptr<double>() : nullptr; };
  const at::Tensor bias = of_head(model.distance_bias(layer)), tau = of_head(model.tau(layer)),
                   sink = of_head(model.sink(layer)), slope = of_head(model.alibi_slopes(layer));
  kernels::Problem p;
  p.q_length = p.k_length = length;
  p.head_dim = dim;
  p.value_dim = length;
  p.dtype = kernels::DType::f64;
  p.scale = config.score_scale(layer);
  p.window = config.window_of(layer);
  p.normalizer = normalizer_of(config.normalizer);
  p.offset = config.offset == "constant" ? kernels::Offset::constant : kernels::Offset::per_visible;
  p.alibi = slope.defined();
  p.bias_window = bias.defined() ? bias.size(0) : 0;
  kernels::Forward<double> f;
  const auto view = [](const at::Tensor& t) { return kernels::ConstView{t.data_ptr<double>(), 0, t.stride(0), 0, 1}; };
  f.q = view(q64);
  f.k = view(k64);
  f.v = view(identity);
  f.out = {out.data_ptr<double>(), 0, length, 0, 1};
  f.lse = lse.data_ptr<double>();
  f.distance_bias = data(bias);
  f.tau = data(tau);
  f.sink = data(sink);
  f.alibi_slopes = data(slope);
  kernels::reference::forward(p, f);
  return causal_rows(out);
}

}  // namespace

bool needs_matrices(const Probes& probes, const ModelConfig& config) {
  if (config.positions == "transformer_xl") return true;
  for (int64_t layer = 0; layer < config.num_layers; ++layer) {
    if (probes.wants(layer, "attention.scores") || probes.wants(layer, "attention.weights")) return true;
  }
  return false;
}

std::vector<WeightRows> attention_weights(LanguageModel& model, const at::Tensor& ids,
                                          const std::vector<std::pair<int64_t, int64_t>>& heads, const Probes* probes) {
  const at::NoGradGuard no_grad;
  const ModelConfig& config = model.config();
  std::vector<WeightRows> result(heads.size());
  ForwardOptions options;
  Probes all = probes ? *probes : Probes();
  const bool matrices = needs_matrices(all, config);
  if (matrices) {
    all.read("layers.*.attention.weights", [&](const std::string& name, const at::Tensor& weights) {
      for (size_t n = 0; n < heads.size(); ++n) {
        if (heads[n].first == layer_of(name)) result[n] = causal_rows(weights[0][heads[n].second]);
      }
    });
  }
  options.probes = all.or_null();
  const auto from_input = [&](int64_t layer, const at::Tensor& q, const at::Tensor& k) {
    for (size_t n = 0; n < heads.size(); ++n) {
      if (heads[n].first != layer) continue;
      const int64_t head = heads[n].second, kv_head = head / (config.num_heads / config.num_kv_heads);
      result[n] = head_weights(model, layer, head, q.select(0, 0).select(1, head), k.select(0, 0).select(1, kv_head));
    }
  };
  if (!matrices) options.on_attention_input = from_input;
  for (const auto& [layer, head] : heads) {
    if (layer < 0 || layer >= config.num_layers || head < 0 || head >= config.num_heads) {
      fail("sinks", "layer {}, head {}: the model has {} layers of {} heads", layer + 1, head + 1, config.num_layers,
           config.num_heads);
    }
  }
  model.forward(ids.reshape({1, -1}).to(model.device()), options);
  return result;
}

}  // namespace lazy::sinks
