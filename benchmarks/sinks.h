// Speed and memory of the sink statistics of one long text, beside the same model's plain forward pass: no n x n matrix
// exists.
#pragma once
#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <string>

#include "model/config.h"

namespace lazy::benchmarks {

struct SinksBenchmark {
  ModelConfig model;
  std::string name;             // of the model, for the figures
  std::string device = "auto";  // "cpu", "cuda"
  std::string dtype = "auto";   // "fp32", "bf16"
  int64_t length = 0;           // tokens of the text; 0: 32768 on a GPU, 2048 on the CPU
  int64_t checked = 192;        // tokens of the text whose statistics are compared with the definition's
  int repeats = 5;              // medians of this many
};

// Prints a table and returns the same figures: milliseconds and, on a GPU, peak bytes of both passes, their ratios.
// RunError when statistics on the short text are not those of the full matrices.
nlohmann::json run_sinks(const SinksBenchmark& options);

}  // namespace lazy::benchmarks
