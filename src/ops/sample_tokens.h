// Sampling of the next tokens on the device, and log-probabilities: what generate/sampler.h does on the host, for all
// rows of a step at once, without waiting.
#pragma once
#include <ATen/core/Tensor.h>

#include <cstdint>

#include "ops/sample_numbers.h"

namespace lazy::ops {

// How a row's token is drawn.
struct SampleRow {
  float temperature = 0;  // 0: the likeliest, of equal ones the first
  int64_t top_k = 0;      // 0: all
  float top_p = 1, min_p = 0;
  uint64_t seed = 0;
  int64_t draw = 0;       // how many tokens this seed has drawn before: core/random.h's number draw + 1
  bool adjusted = false;  // counts and bias apply, and the token is counted
  float repetition_penalty = 1, presence_penalty = 0, frequency_penalty = 0;
  void write(int64_t* to) const;  // kSampleNumberCount numbers in the order of SampleNumber; floats as bits
};

struct SampleInputs {
  at::Tensor logits;   // (rows, vocabulary) fp32 contiguous
  at::Tensor numbers;  // (rows, kSampleNumberCount) int64
  at::Tensor slots;    // (rows) int64: where each row's sequence stands in what follows
  // (slots, vocabulary), or undefined where no row is adjusted: int32, how often the text has each token, plus
  // kInPrompt where the prompt has it; fp32, added to the logits.
  at::Tensor counts, bias;
  at::Tensor last;    // (slots) int64: gets the token
  at::Tensor tokens;  // (rows) int64: gets the token; -1 where logits are not numbers or the largest is infinite (then
                      // `last` gets 0)
};

// Filters in the order of generate/sampler.h, and its draw from the same logits, up to rounding: weights are counted in
// steps of 2^-36 of the likeliest one's, so that the order of additions does not matter. Changes last, tokens, counts.
void sample_tokens(const SampleInputs& inputs);

}  // namespace lazy::ops
