// Speed of lazy::decode on the CPU beside PyTorch's scaled_dot_product_attention (softmax): one new token a sequence against
// a long cache, at equal threads.
#pragma once
#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

namespace lazy::benchmarks {

struct DecodeBenchmark {
  std::string device = "cpu";            // or cuda
  int64_t batch = 1, keys = 32768, heads = 8, kv_heads = 8;
  std::vector<int64_t> head_dims = {64, 128};
  std::vector<std::string> dtypes = {"fp32", "bf16"};
  int64_t bias_window = 512;
  // Standard deviation of the scores. A key is alive above ln of the mean exponential, scale^2 / 2: 1.35 leaves a quarter.
  double score_scale = 1.35;
  int repeats = 15;                      // medians of this many
};

// Checks every variant against the float64 definition on a short cache (RunError when one is wrong), then times it and
// prints a table to stdout. Returns the same figures.
nlohmann::json run_decode(const DecodeBenchmark& options);

}  // namespace lazy::benchmarks
