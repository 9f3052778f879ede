// One decode step (one token) of the linear recurrences and of their short convolutions. Each step is one kernel that
// reads and writes a state once. NVIDIA GPUs and inference only; model/mixers/recurrence has the definitions.
#pragma once
#include <ATen/core/Tensor.h>

#include <utility>

#include "ops/linear_recurrence.h"

namespace lazy::ops {

constexpr int64_t kMaxStepKeys = 512;  // maximum key_dim of the kernel

// Whether the kernel supports the input, which must have length 1, no documents, and dtype fp32, bf16 or fp16.
bool serves_recurrence_step(const LinearRecurrence& in);
// Returns the output, with the shape of v, and the next state.
std::pair<at::Tensor, at::Tensor> recurrence_step(const LinearRecurrence& in);

// x (batch, 1, channels), weight (channels, 1, taps), bias (channels) or undefined. past (batch, taps - 1, channels)
// contains the previous inputs in the dtype of x (see ops/short_convolution.h).
struct ConvolutionStep {
  at::Tensor x, weight, bias, past;
};
bool serves_convolution_step(const ConvolutionStep& in);
// Returns the output and the value of `past` for the next step.
std::pair<at::Tensor, at::Tensor> convolution_step(const ConvolutionStep& in);

}  // namespace lazy::ops
