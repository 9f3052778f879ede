// Small models for the tests in this directory, and reference scores that are computed from complete matrices of
// logits. The weights are far from zero, so that an error changes the scores visibly.
#pragma once
#include <ATen/ATen.h>

#include "eval/score.h"
#include "model/config.h"
#include "model/forward_options.h"
#include "model/language_model.h"

namespace lazy::eval {

inline ModelConfig small_config(int64_t vocabulary = 300, int64_t max_length = 64) {
  ModelConfig config;
  config.vocab_size = vocabulary;
  config.hidden_size = 32;
  config.num_layers = 2;
  config.attention.num_heads = config.attention.num_kv_heads = 2;
  config.attention.head_dim = 16;
  config.max_length = max_length;
  config.init_std = 0.3;
  return config;
}

// Returns the configuration of a model with three layers and grouped-query attention.
inline ModelConfig grouped_config(int64_t vocabulary, int64_t max_length = 64) {
  ModelConfig config = small_config(vocabulary, max_length);
  config.hidden_size = 48;
  config.num_layers = 3;
  config.attention.num_heads = 4;
  config.attention.head_dim = 12;
  return config;
}

// Computes log p of every target from the complete (length, vocabulary) matrix of logits in float64, one window at a
// time.
inline Score plain_score(LanguageModel& model, const Window& w) {
  const at::NoGradGuard no_grad;
  const std::vector<int64_t> ids(w.input.begin(), w.input.end());
  const at::Tensor input = at::tensor(ids, at::kLong).unsqueeze(0);
  const at::Tensor log_p = at::log_softmax(model.logits(model.forward(input).hidden).to(at::kDouble), -1)[0];
  Score result;
  for (size_t i = 0; i < w.targets.size(); ++i) {
    const auto row = log_p[static_cast<int64_t>(w.input.size() - w.targets.size() + i)];
    result.log_likelihood += row[w.targets[i]].item<double>();
    result.greedy = result.greedy && row.argmax().item<int64_t>() == w.targets[i];
  }
  return result;
}

}  // namespace lazy::eval
