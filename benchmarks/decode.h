// Speed of lazy::decode beside PyTorch's scaled_dot_product_attention (softmax): one new token a sequence against a
// long cache, on the CPU at equal threads, or on a GPU beside cuDNN and FlashAttention-2.
#pragma once
#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

namespace lazy::benchmarks {

struct DecodeBenchmark {
  std::string device = "cpu";  // "cpu" or "cuda"
  int64_t batch = 1, keys = 32768, heads = 8, kv_heads = 8;
  std::vector<int64_t> head_dims = {64, 128};
  std::vector<std::string> dtypes = {"fp32", "bf16"};
  int64_t bias_window = 512;
  // Standard deviation of the scores. A key is alive above ln of the mean exponential, scale^2 / 2: 1.35 leaves a
  // quarter.
  double score_scale = 1.35;
  int repeats = 15;  // medians of this many
};

// Checks every variant against the float64 definition on a short cache (RunError when one is wrong), then times it and
// prints a table to stdout. Returns the same figures.
nlohmann::json run_decode(const DecodeBenchmark& options);
// The same for device "cuda"; loads the CUDA operators (std::runtime_error when they cannot be had). What to give it on
// a large GPU: batch 16, 16 heads, 16 or 4 kv_heads, bf16.
nlohmann::json run_decode_cuda(const DecodeBenchmark& options);

}  // namespace lazy::benchmarks
