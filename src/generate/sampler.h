// Sampling of the next token from logits: greedy, temperature, top-k, top-p, min-p, penalties, biases. Equal seeds give
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
  double temperature = 1;         // 0: greedy (of equal logits, the first)
  int64_t top_k = 0;              // sample among the k largest logits; 0: all
  double top_p = 1;               // nucleus: the smallest set of most likely tokens with this probability; 1: all
  double repetition_penalty = 1;  // positive logits of seen tokens are divided by it, negative ones multiplied
  uint64_t seed = 0;
  double min_p = 0;              // drop tokens below this share of the most likely one's probability; 0: none
  double presence_penalty = 0;   // subtracted from the logits of tokens that the text has
  double frequency_penalty = 0;  // the same, for each time that the text has them
  std::vector<std::pair<int64_t, float>> logit_bias = {};  // added to the logits of these tokens
  void validate() const;                                   // Error naming the option
};

// How often a token has occurred so far.
struct TokenCount {
  int32_t prompt = 0, text = 0;
};
using TokenCounts = std::unordered_map<int64_t, TokenCount>;

// The order is Hugging Face's: biases, repetition penalty, temperature, top-k, top-p, min-p. Presence and frequency
// penalties, which it lacks, follow the repetition penalty and count the text alone, as OpenAI and vLLM define them;
// the repetition penalty counts prompt and text.
class Sampler {
 public:
  explicit Sampler(const SamplingOptions& options);
  // `logits` (vocabulary). Error on NaN logits, and on a bias outside the vocabulary.
  int64_t sample(std::span<const float> logits, const TokenCounts& counts);

 private:
  void adjust(const TokenCounts& counts);  // biases and penalties, in scores_
  SamplingOptions options_;
  Random random_;
  std::vector<float> scores_;
  std::vector<int32_t> order_;
};

}  // namespace lazy
