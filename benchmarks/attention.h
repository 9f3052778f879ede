// Speed of lazy::attention beside PyTorch's own scaled_dot_product_attention (softmax), causal: on the CPU at equal
// threads, on a GPU beside its cuDNN and FlashAttention-2 kernels.
#pragma once
#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

namespace lazy::benchmarks {

struct AttentionBenchmark {
  std::string device = "cpu";  // or cuda
  int64_t batch = 1, length = 4096, heads = 8;
  std::vector<int64_t> head_dims = {64, 128};
  std::vector<std::string> dtypes = {"fp32", "bf16"};
  int64_t bias_window = 512;
  double score_scale = 1;  // standard deviation of the scores: larger means fewer alive pairs
  int repeats = 9;         // medians of this many
};

// Checks every variant against the float64 definition on a short problem (RunError when one is wrong), then times it
// and prints a table to stdout. Returns the same figures.
nlohmann::json run_attention(const AttentionBenchmark& options);

}  // namespace lazy::benchmarks
