// Samples the next token from logits: greedy, temperature, top-k, top-p, min-p, penalties and biases. Equal seeds give
// equal tokens on every machine.
#pragma once
#include <cstdint>
#include <span>
#include <unordered_map>
#include <utility>
#include <vector>

#include "core/random.h"

namespace lazy {

struct SamplingOptions {
  double temperature = 1;         // 0: greedy; the lowest id wins among equal logits
  int64_t top_k = 0;              // sample from the k largest logits; 0: all
  double top_p = 1;               // nucleus sampling: the most likely tokens up to this total probability; 1: all
  double repetition_penalty = 1;  // divides positive and multiplies negative logits of tokens that have occurred
  uint64_t seed = 0;
  double min_p = 0;              // drop tokens below this fraction of the highest probability; 0: none
  double presence_penalty = 0;   // subtracted from the logits of tokens that occur in the generated text
  double frequency_penalty = 0;  // subtracted for each occurrence of a token in the generated text
  std::vector<std::pair<int64_t, float>> logit_bias = {};  // added to the logits of these tokens
  void validate(const char* operation) const;  // throws Error "OPERATION: ..." that names the invalid option
};

// How often a token occurs in the prompt (`prompt`) and in the generated text (`text`).
struct TokenCount {
  int32_t prompt = 0, text = 0;
};
using TokenCounts = std::unordered_map<int64_t, TokenCount>;

// The order of operations is the same as in Hugging Face transformers: biases, repetition penalty, temperature, top-k,
// top-p, min-p. The presence and frequency penalties, which transformers does not have, follow the repetition penalty.
// They count only tokens of the generated text, as OpenAI and vLLM define them, whereas the repetition penalty counts
// tokens of prompt and text.
class Sampler {
 public:
  explicit Sampler(const SamplingOptions& options);
  // Returns the id of the sampled token. `logits` has one entry per token of the vocabulary. Throws an Error if a logit
  // is NaN or if options.logit_bias has an id outside the vocabulary.
  int64_t sample(std::span<const float> logits, const TokenCounts& counts);

 private:
  void adjust(const TokenCounts& counts);  // applies biases and penalties to scores_
  SamplingOptions options_;
  Random random_;
  std::vector<float> scores_;
  std::vector<int32_t> order_;
};

}  // namespace lazy
