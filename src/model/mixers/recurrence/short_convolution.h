// The short convolution before a recurrence: over time, causal, each channel by itself, then SiLU.
//   y_t = silu(bias + sum_j weight_j x_{t - taps + 1 + j})
#pragma once
#include <ATen/core/Tensor.h>

namespace lazy::recurrence {

struct Convolution {
  at::Tensor out;    // (B, L, channels), of x's type
  at::Tensor state;  // (B, taps - 1, channels): the latest inputs. Undefined for packed documents
};

struct ConvolutionInputs {
  at::Tensor x;           // (B, L, channels)
  at::Tensor weight;      // (channels, 1, taps)
  at::Tensor bias;        // (channels) or undefined
  at::Tensor state;       // of the tokens before; undefined: zeros
  at::Tensor cu_seqlens;  // as in recurrence.h
};

Convolution short_convolution(const ConvolutionInputs& in);  // sums in fp32 for less precise inputs

}  // namespace lazy::recurrence
