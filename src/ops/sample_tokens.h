// Sampling of the next tokens on the device. Does the same as generate/sampler.h on the host, but in one call for all
// rows of a decode step and without synchronization.
#pragma once
#include <ATen/core/Tensor.h>

#include <cstdint>

#include "ops/sample_numbers.h"

namespace lazy::ops {

// Sampling parameters of one row.
struct SampleRow {
  float temperature = 0;  // 0: greedy, selects the token with the largest logit (of equal logits, the first)
  int64_t top_k = 0;      // 0: no limit
  float top_p = 1, min_p = 0;
  uint64_t seed = 0;
  int64_t draw = 0;       // number of tokens drawn before with this seed: the index of the random number to use
  bool adjusted = false;  // true: counts and bias are applied, and the sampled token is counted
  float repetition_penalty = 1, presence_penalty = 0, frequency_penalty = 0;
  // Writes kSampleNumberCount numbers in the order of SampleNumber; floats are written as bit patterns.
  void write(int64_t* to) const;
};

struct SampleInputs {
  at::Tensor logits;   // (rows, vocabulary) fp32 contiguous
  at::Tensor numbers;  // (rows, kSampleNumberCount) int64
  at::Tensor slots;    // (rows) int64: index of each row's sequence in the tensors below
  // (slots, vocabulary), or undefined if no row is adjusted. counts, int32: how often the generated text contains each
  // token, plus kInPrompt if the prompt contains it. bias, fp32: added to the logits.
  at::Tensor counts, bias;
  at::Tensor last;  // (slots) int64: the sampled token is written to the slot of its row
  // (rows) int64: the sampled token of each row is written here, or -1 if a logit is NaN or the largest logit is
  // infinite. In this case, 0 is written to `last`.
  at::Tensor tokens;
};

// Applies the filters in the order of generate/sampler.h and draws the same token from the same logits, up to rounding.
// Probabilities are accumulated as integer multiples of 2^-36 of the largest probability, so that the order of
// additions does not matter. Modifies last, tokens and counts.
void sample_tokens(const SampleInputs& inputs);

}  // namespace lazy::ops
