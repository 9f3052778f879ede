// Computes the attention weights of every layer and head of a small model from their definition, in float64. The sink
// measures are compared with these matrices.
#pragma once
#include <ATen/ATen.h>

#include <cmath>
#include <string>
#include <vector>

#include "model/forward_options.h"
#include "model/language_model.h"

namespace lazy::sinks {

inline LanguageModel small_model(const std::string& normalizer, double tau = -1, int64_t window = -1,
                                 int64_t kv_heads = 4) {
  ModelConfig config;
  config.vocab_size = 300;
  config.hidden_size = 64;
  config.num_layers = 3;
  config.attention.num_heads = 4;
  config.attention.num_kv_heads = kv_heads;
  config.attention.head_dim = 16;
  config.max_length = 48;
  config.attention.normalizer = *kNormalizerNames.find(normalizer);
  config.attention.offset_init = tau;
  config.attention.distance_bias_window = normalizer == "elastic" ? 12 : 0;
  config.attention.distance_bias_init_std = 1;
  config.attention.window = window;
  config.init_std = 0.25;
  return LanguageModel(config, 11);
}

// Returns the weights by layer and head, each (length, length) in float64. They are computed from the q and k that the
// model passes to the attention operator.
inline std::vector<std::vector<at::Tensor>> full_weights(LanguageModel& model, const at::Tensor& ids) {
  const at::NoGradGuard no_grad;
  const ModelConfig& c = model.config();
  std::vector<std::vector<at::Tensor>> result(static_cast<size_t>(c.num_layers));
  ForwardOptions options;
  options.on_attention_input = [&](int64_t layer, const at::Tensor& q, const at::Tensor& k) {
    const int64_t n = q.size(1);
    for (int64_t head = 0; head < c.attention.num_heads; ++head) {
      const at::Tensor Q = q[0].select(1, head).to(at::kDouble),
                       K = k[0].select(1, head / (c.attention.num_heads / c.attention.num_kv_heads)).to(at::kDouble);
      at::Tensor s = at::mm(Q, K.t()) / std::sqrt(double(c.attention.head_dim));
      at::Tensor w = at::zeros({n, n}, at::kDouble);
      for (int64_t i = 0; i < n; ++i) {
        const int64_t begin = c.attention.window > 0 ? std::max<int64_t>(0, i - c.attention.window + 1) : 0;
        at::Tensor row = s[i].slice(0, begin, i + 1).clone();
        if (model.distance_bias(layer).defined()) {
          for (int64_t j = begin; j <= i; ++j) {
            if (i - j < c.attention.distance_bias_window)
              row[j - begin] += model.distance_bias(layer)[head][i - j].to(at::kDouble);
          }
        }
        at::Tensor p = at::softmax(row, 0);
        if (model.tau(layer).defined()) p = at::relu(p + model.tau(layer)[head].item<double>() / double(i + 1 - begin));
        w[i].slice(0, begin, i + 1).copy_(p);
      }
      result[static_cast<size_t>(layer)].push_back(w);
    }
  };
  model.forward(ids.reshape({1, -1}), options);
  return result;
}

}  // namespace lazy::sinks
