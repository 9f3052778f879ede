// The short convolution before a recurrence: causal and depthwise over time, followed by SiLU.
//   y_t = silu(bias + sum_j weight_j x_{t - taps + 1 + j})
#pragma once
#include <ATen/core/Tensor.h>

namespace lazy::recurrence {

struct Convolution {
  at::Tensor out;    // (B, L, channels), of x's dtype
  at::Tensor state;  // (B, taps - 1, channels): the latest inputs. Undefined for packed documents
};

struct ConvolutionInputs {
  at::Tensor x;           // (B, L, channels)
  at::Tensor weight;      // (channels, 1, taps)
  at::Tensor bias;        // (channels) or undefined
  at::Tensor state;       // inputs of the previous tokens; undefined: zeros
  at::Tensor cu_seqlens;  // as in recurrence.h
};

Convolution short_convolution(const ConvolutionInputs& in);  // accumulates lower-precision inputs in fp32

}  // namespace lazy::recurrence
