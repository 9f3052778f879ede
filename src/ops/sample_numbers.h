// The order in which the sampling parameters of a row are stored, for host and device code.
#pragma once
#include <cstdint>

namespace lazy::ops {

enum class SampleNumber {
  temperature,
  top_k,
  top_p,
  min_p,
  seed,
  draw,
  adjusted,
  repetition_penalty,
  presence_penalty,
  frequency_penalty,
  end
};
constexpr int64_t kSampleNumberCount = static_cast<int64_t>(SampleNumber::end);
constexpr int32_t kInPrompt = int32_t{1} << 30;  // flag in a token count: set if the prompt contains the token

}  // namespace lazy::ops
