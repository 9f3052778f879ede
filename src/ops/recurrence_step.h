// One token of the linear recurrences over time and of the short convolutions in front of them, each by one kernel that
// reads and writes a state once. NVIDIA GPUs and inference only; model/mixers/recurrence has the definitions.
#pragma once
#include <ATen/core/Tensor.h>

#include <utility>

#include "ops/linear_recurrence.h"

namespace lazy::ops {

constexpr int64_t kMostStepKeys = 512;  // wide

// Of length 1, without documents; any of fp32, bf16 and fp16. Whether the kernels take it.
bool serves_recurrence_step(const LinearRecurrence& in);
// The output, like v, and the next state.
std::pair<at::Tensor, at::Tensor> recurrence_step(const LinearRecurrence& in);

// x (batch, 1, channels), weight (channels, 1, taps), bias (channels) or undefined, past (batch, taps - 1, channels) of
// x's type: see ops/short_convolution.h.
struct ConvolutionStep {
  at::Tensor x, weight, bias, past;
};
bool serves_convolution_step(const ConvolutionStep& in);
// The output and the next past.
std::pair<at::Tensor, at::Tensor> convolution_step(const ConvolutionStep& in);

}  // namespace lazy::ops
