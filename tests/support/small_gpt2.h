// A GPT-2 with random weights and biases everywhere, small enough for definitions written out.
#pragma once
#include <ATen/ATen.h>

#include "model/families/family.h"
#include "model/language_model.h"

namespace lazy {

inline LanguageModel small_gpt2(uint64_t seed, int64_t positions = 18, int64_t vocabulary = 50) {
  ModelConfig c;
  find_family("gpt2")->defaults(c);
  c.vocab_size = vocabulary;
  c.hidden_size = 24;
  c.num_layers = 3;
  c.num_heads = c.num_kv_heads = 4;
  c.head_dim = 6;
  c.intermediate_size = 40;
  c.max_length = positions;
  c.init_std = 0.3;
  LanguageModel model(c, seed);
  const at::NoGradGuard guard;
  double phase = static_cast<double>(seed);
  for (const auto& [name, tensor] : model.stored()) {
    if (tensor.dim() == 1) tensor.add_(0.5 * at::sin(at::arange(tensor.numel(), at::kFloat) * 1.7 + phase++));
  }
  return model;
}

}  // namespace lazy
