// The small models that the tests of this folder ask. Weights far from zero make mistakes show.
#pragma once
#include "model/config.h"

namespace lazy::eval {

inline ModelConfig small_config(int64_t vocabulary = 300, int64_t max_length = 64) {
  ModelConfig config;
  config.vocab_size = vocabulary;
  config.hidden_size = 32;
  config.num_layers = 2;
  config.num_heads = config.num_kv_heads = 2;
  config.head_dim = 16;
  config.max_length = max_length;
  config.init_std = 0.3;
  return config;
}

// Three layers of grouped heads.
inline ModelConfig grouped_config(int64_t vocabulary, int64_t max_length = 64) {
  ModelConfig config = small_config(vocabulary, max_length);
  config.hidden_size = 48;
  config.num_layers = 3;
  config.num_heads = 4;
  config.head_dim = 12;
  return config;
}

}  // namespace lazy::eval
