// Speed of the fused operators (RMSNorm, SwiGLU, RoPE, forward and backward) beside a plain copy in the same process:
// they compute little, so what they can reach is the memory's own speed.
#pragma once
#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

namespace lazy::benchmarks {

struct FusedBenchmark {
  std::string device = "cpu";  // "cpu" or "cuda"
  int64_t rows = 0;            // tokens; 0: 32768 on a GPU, 4096 on the CPU
  std::vector<int64_t> dims = {1024, 2048, 4096};
  std::vector<std::string> dtypes = {"bf16"};  // "fp32", "bf16" and, on a GPU, "fp16"
  int repeats = 15;                            // medians of this many
};

// Checks every operator against the float64 definition on a few rows (RunError when one is wrong), then times it and
// prints a table to stdout: GB/s count each input and each output once. Returns the same figures. With "cuda" it loads
// the CUDA operators (std::runtime_error when they cannot be had).
nlohmann::json run_fused(const FusedBenchmark& options);

}  // namespace lazy::benchmarks
