// The order of a row's numbers for sampling, on the host and on the device.
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
constexpr int32_t kInPrompt = int32_t{1} << 30;  // of a token's count: the prompt has it

}  // namespace lazy::ops
