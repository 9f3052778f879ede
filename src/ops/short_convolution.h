// lazy::short_convolution: causal depthwise convolution over time, then SiLU, in one pass over memory:
//   y_t = silu(bias + sum_j weight_j x_{t - taps + 1 + j}), sums in fp32.
#pragma once
#include <ATen/core/Tensor.h>

#include <optional>

#include "ops/optional_tensor.h"

namespace lazy::ops {

constexpr int64_t kMaxTaps = 8;

// x (batch, length, channels) fp32, bf16 or fp16; channels are contiguous, the stride of tokens is arbitrary. weight
// (channels, 1, taps) and bias (channels) have any floating-point type. past (batch, taps - 1, channels): the inputs
// before x, in the dtype of x; absent: zeros. cu_seqlens (documents + 1) int32: offsets of the documents in a batch of
// 1 without past; no tap crosses a document boundary. Returns a contiguous tensor with the shape and dtype of x.
// Differentiable in x, weight and bias; the backward pass recomputes the sums.
at::Tensor short_convolution(const at::Tensor& x, const at::Tensor& weight, const std::optional<at::Tensor>& bias,
                             const std::optional<at::Tensor>& past, const std::optional<at::Tensor>& cu_seqlens);

// Only the CPU and CUDA implementations use the following declarations. check_short_convolution() throws
// "lazy::short_convolution: expected ..., received ..." for invalid arguments, without reading tensor data.
void check_short_convolution(const at::Tensor& x, const at::Tensor& weight, const OptionalTensor& bias,
                             const OptionalTensor& past, const OptionalTensor& cu_seqlens);

// Splits `sums` (taps + 1, channels) fp32 into the gradients of weight and bias. The first `taps` rows are the
// gradients of the taps, and the last row is the gradient of the bias, each summed over all tokens.
struct ShortConvolutionGradients {
  at::Tensor d_x, d_weight, d_bias;
};
ShortConvolutionGradients split_gradients(const at::Tensor& d_x, const at::Tensor& sums, const at::Tensor& weight,
                                          const OptionalTensor& bias);

}  // namespace lazy::ops
