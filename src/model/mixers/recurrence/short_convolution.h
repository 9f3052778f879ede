// The short convolution before a recurrence: causal and depthwise over time, followed by SiLU.
//   y_t = silu(bias + sum_j weight_j x_{t - taps + 1 + j})
#pragma once
#include <ATen/core/Tensor.h>

namespace lazy::recurrence {

struct Convolution {
  at::Tensor out;    // (B, L, channels), in the dtype of x
  at::Tensor state;  // (B, taps - 1, channels): the last taps - 1 inputs; undefined for packed documents
};

struct ConvolutionInputs {
  at::Tensor x;           // (B, L, channels), with batch size B and length L
  at::Tensor weight;      // (channels, 1, taps)
  at::Tensor bias;        // (channels) or undefined
  at::Tensor state;       // inputs of the previous tokens, as in Convolution::state; undefined: zeros
  at::Tensor cu_seqlens;  // (documents + 1): offsets of packed documents; undefined: sequences are not packed
};

Convolution short_convolution(const ConvolutionInputs& in);  // 16-bit inputs are accumulated in fp32

}  // namespace lazy::recurrence
