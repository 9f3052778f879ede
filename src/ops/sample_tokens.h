// Sampling of the next tokens on the device. It does what generate/sampler.h does on the host, but for all rows of a
// step at once and without synchronization.
#pragma once
#include <ATen/core/Tensor.h>

#include <cstdint>

#include "ops/sample_numbers.h"

namespace lazy::ops {

// Sampling parameters of one row.
struct SampleRow {
  float temperature = 0;  // 0: greedy, the token with the largest logit (the first one of equal ones)
  int64_t top_k = 0;      // 0: no limit
  float top_p = 1, min_p = 0;
  uint64_t seed = 0;
  int64_t draw = 0;       // how many tokens this seed has drawn before; uses number draw + 1 of core/random.h
  bool adjusted = false;  // if set, counts and bias are applied, and the token is counted
  float repetition_penalty = 1, presence_penalty = 0, frequency_penalty = 0;
  // Writes kSampleNumberCount numbers in the order of SampleNumber; floats are written as bit patterns.
  void write(int64_t* to) const;
};

struct SampleInputs {
  at::Tensor logits;   // (rows, vocabulary) fp32 contiguous
  at::Tensor numbers;  // (rows, kSampleNumberCount) int64
  at::Tensor slots;    // (rows) int64: index of the sequence of each row in the slots of the tensors below
  // (slots, vocabulary), or undefined if no row is adjusted. counts, int32: how often the generated text contains each
  // token, plus kInPrompt if the prompt contains it. bias, fp32: added to the logits.
  at::Tensor counts, bias;
  at::Tensor last;  // (slots) int64: receives the token
  // (rows) int64: receives the token, or -1 if a logit is NaN or the largest one is infinite; `last` then receives 0
  at::Tensor tokens;
};

// Applies the filters in the order of generate/sampler.h and draws the same token from the same logits, up to rounding.
// Probabilities are accumulated as integer multiples of 2^-36 of the largest probability, so that the order of
// additions does not matter. Modifies last, tokens and counts.
void sample_tokens(const SampleInputs& inputs);

}  // namespace lazy::ops
