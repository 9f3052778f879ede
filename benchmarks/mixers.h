// The mixers side by side: speed of training and of generation, and what is kept of the past, by length of the text.
// The shapes are those of configs/models/*-340m.toml, of which a few layers, with a small vocabulary, may stand for
// all.
#pragma once
#include <cstdint>
#include <functional>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

namespace lazy::benchmarks {

struct MixersBenchmark {
  std::string device = "auto";      // "cpu", "cuda"
  std::string dtype = "auto";       // "fp32", "bf16"
  std::vector<std::string> models;  // "retnet", ...: configs/models/NAME-340m.toml; empty: all
  std::vector<int64_t> lengths;     // tokens of a text; empty: 1024 on a CPU, 1024 to 65536 on a GPU
  int64_t layers = 0;               // 0: 2 on a CPU, the model's own on a GPU
  int64_t tokens = 0;               // of a training step, at least one text; 0: 2048 on a CPU, 32768 on a GPU
  int64_t steps = 3;                // training steps, and rounds of 16 generated tokens, of which the median counts
  std::function<void(const nlohmann::json&)> after_model;  // gets what run_mixers would return so far
};

// Model after model, so that what is slow can be cut off. Prints a table and returns its rows: model, length,
// train_tokens_per_second, decode_ms_per_token, state_bytes (of a text of that length), peak_memory_bytes (GPU), and
// each speed as a multiple of the softmax transformer's.
nlohmann::json run_mixers(const MixersBenchmark& options);

}  // namespace lazy::benchmarks
