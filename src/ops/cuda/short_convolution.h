// The short convolution with SiLU on NVIDIA GPUs. As in rows.h, the functions take device pointers and only launch work
// on the stream; they do not allocate memory or synchronize. Results are bit-identical between runs.
#pragma once
#include <cuda_runtime_api.h>

#include <cstdint>

#include "lazy/attention.h"

namespace lazy::ops::cuda {

struct ShortConvolution {
  kernels::DType type;
  const void* x;  // (batch, length, channels) with the two strides below, in elements; channels are contiguous
  int64_t batch_stride, token_stride;
  const float* weight;        // (channels, taps)
  const float* bias;          // (channels) or null
  const void* past;           // inputs before token 0, (batch, taps - 1, channels) contiguous; null: zeros
  const int32_t* cu_seqlens;  // (documents + 1): start of each packed document, and the length; null: not packed
  int documents;
  int64_t batch, length, channels;
  // First sequence (for blocks with blockIdx.z = 0) and first block of runs (for blocks with blockIdx.y = 0) of this
  // launch, which may cover only a part of the problem.
  int64_t first_sequence = 0, first_block = 0;
  int taps;         // 1 to 8
  void* y;          // contiguous; only written by the forward pass
  const void* d_y;  // contiguous; only used by the backward pass
  void* d_x;        // contiguous
  float* parts;     // (short_convolution_parts, taps + 1, channels): partial sums of d_weight and d_bias
};

void short_convolution(const ShortConvolution& arguments, cudaStream_t stream);

int64_t short_convolution_parts(const ShortConvolution& arguments);
void short_convolution_backward(const ShortConvolution& arguments, cudaStream_t stream);

}  // namespace lazy::ops::cuda
