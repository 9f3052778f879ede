// Picking the next token from logits: greedy, temperature, top-k, top-p, repetition penalty; the same on every machine.
#pragma once
#include <cstdint>
#include <span>
#include <unordered_set>
#include <vector>

#include "core/random.h"

namespace lazy {

struct SamplingOptions {
  double temperature = 1;         // 0: the largest logit, the first of equals
  int64_t top_k = 0;              // only the k largest logits; 0: all
  double top_p = 1;               // the smallest set of most likely tokens that holds this probability; 1: all
  double repetition_penalty = 1;  // logits of tokens that occurred are divided (if negative, multiplied) by it
  uint64_t seed = 0;
  void validate() const;  // Error naming the option
};

// The order of the filters is Hugging Face's: penalty, temperature, top-k, top-p.
class Sampler {
 public:
  explicit Sampler(const SamplingOptions& options);
  // `logits` (vocabulary); `seen`: tokens of the prompt and the text so far. NaN among the logits is an Error.
  int64_t pick(std::span<const float> logits, const std::unordered_set<int64_t>& seen);

 private:
  SamplingOptions options_;
  Random random_;
  std::vector<float> scores_;
  std::vector<int32_t> order_;
};

}  // namespace lazy
