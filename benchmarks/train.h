// Speed of training: tokens a second of whole steps (data, forward, backward, sums over the ranks, clipping, AdamW),
// what part of a step each of them takes, the most expensive kernels, and the memory that it needs.
#pragma once
#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <string>

#include "model/config.h"

namespace lazy::benchmarks {

struct TrainBenchmark {
  ModelConfig model;
  std::string name;                    // of the model, for the figures
  std::string device = "auto";         // "cpu", "cuda"
  std::string dtype = "auto";          // "fp32", "bf16"
  std::string checkpointing = "none";  // "mlp", "attention", "full"
  int64_t batch = 8, length = 4096;    // of a micro-batch
  int64_t accumulation = 1;
  int64_t steps = 10;                       // timed, after three that are not
  std::string corpus;                       // of `lazy data prepare`; "": random tokens that lie on the device
  std::string data_parallel = "replicate";  // "zero2", "full_shard": of the ranks that a launcher started
  bool profile = false;                     // the ten most expensive kernels
};

// Prints a table and returns the same figures, of the first rank: tokens_per_second, mfu, peak_memory_bytes,
// milliseconds of the parts; null on other ranks. Communication is what the device waits for behind the backward pass:
// what is not hidden.
nlohmann::json run_train(const TrainBenchmark& options);

}  // namespace lazy::benchmarks
