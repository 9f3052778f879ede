// lazy::short_convolution: over time, causal, each channel by itself, then SiLU, in one pass over memory:
//   y_t = silu(bias + sum_j weight_j x_{t - taps + 1 + j}), sums in fp32.
#pragma once
#include <ATen/core/Tensor.h>

#include <optional>

namespace lazy::ops {

constexpr int64_t kMostTaps = 8;

// x (batch, length, channels) fp32, bf16 or fp16; channels are contiguous, tokens may lie in a wider tensor. weight
// (channels, 1, taps) and bias (channels) of any floating type. past (batch, taps - 1, channels): the inputs before x, of x's
// type; absent: zeros. cu_seqlens (documents + 1) int32: where documents begin in a batch of 1 without past; no document sees
// another. Returns a contiguous tensor like x. Differentiable in x, weight and bias; the backward pass computes the sums again.
at::Tensor short_convolution(const at::Tensor& x, const at::Tensor& weight, const std::optional<at::Tensor>& bias,
                             const std::optional<at::Tensor>& past, const std::optional<at::Tensor>& cu_seqlens);

}  // namespace lazy::ops
