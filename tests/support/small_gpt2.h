// A GPT-2 with random weights and biases in all layers, small enough for explicit computations.
#pragma once
#include <ATen/ATen.h>

#include "model/language_model.h"
#include "support/small_models.h"

namespace lazy {

inline LanguageModel small_gpt2(uint64_t seed, int64_t positions = 18, int64_t vocabulary = 50) {
  ModelConfig c = small_family("gpt2");
  c.vocab_size = vocabulary;
  c.max_length = positions;
  LanguageModel model(c, seed);
  const at::NoGradGuard guard;
  double phase = static_cast<double>(seed);
  for (const auto& [name, tensor] : model.stored()) {
    if (tensor.dim() == 1) tensor.add_(0.5 * at::sin(at::arange(tensor.numel(), at::kFloat) * 1.7 + phase++));
  }
  return model;
}

}  // namespace lazy
