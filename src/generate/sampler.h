// Sampling of the next token from logits: greedy, temperature, top-k, top-p, repetition penalty. Equal seeds give equal
// tokens on every machine.
#pragma once
#include <cstdint>
#include <span>
#include <unordered_set>
#include <vector>

#include "core/random.h"

namespace lazy {

struct SamplingOptions {
  double temperature = 1;         // 0: greedy (of equal logits, the first)
  int64_t top_k = 0;              // sample among the k largest logits; 0: all
  double top_p = 1;               // nucleus: the smallest set of most likely tokens with this probability; 1: all
  double repetition_penalty = 1;  // positive logits of seen tokens are divided by it, negative ones multiplied
  uint64_t seed = 0;
  void validate() const;  // Error naming the option
};

// The order of the filters is Hugging Face's: penalty, temperature, top-k, top-p.
class Sampler {
 public:
  explicit Sampler(const SamplingOptions& options);
  // `logits` (vocabulary); `seen`: tokens of the prompt and the text so far. Error on NaN logits.
  int64_t sample(std::span<const float> logits, const std::unordered_set<int64_t>& seen);

 private:
  SamplingOptions options_;
  Random random_;
  std::vector<float> scores_;
  std::vector<int32_t> order_;
};

}  // namespace lazy
