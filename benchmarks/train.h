// Speed of training: tokens a second of whole steps (forward, backward, clipping, AdamW) on random tokens, what part of a
// step each of them takes, the most expensive kernels, and the memory that it needs.
#pragma once
#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <string>

#include "model/config.h"

namespace lazy::benchmarks {

struct TrainBenchmark {
  ModelConfig model;
  std::string name;                         // of the model, for the figures
  std::string device = "auto";              // "cpu", "cuda"
  std::string dtype = "auto";               // "fp32", "bf16"
  std::string checkpointing = "none";       // "mlp", "attention", "full"
  int64_t batch = 8, length = 4096;         // of a micro-batch
  int64_t accumulation = 1;
  int64_t steps = 10;                       // timed, after three that are not
  bool profile = false;                     // the ten most expensive kernels
};

// Prints a table and returns the same figures: tokens_per_second, mfu, peak_memory_bytes, milliseconds of the parts.
nlohmann::json run_train(const TrainBenchmark& options);

}  // namespace lazy::benchmarks
