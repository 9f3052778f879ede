// The short convolution with SiLU on NVIDIA GPUs, as rows.h: device pointers, everything is queued on the stream,
// nothing is allocated and nothing waits; results are bit-identical from run to run.
#pragma once
#include <cuda_runtime_api.h>

#include <cstdint>

#include "lazy/attention.h"

namespace lazy::ops::cuda {

struct ShortConvolution {
  kernels::DType type;
  const void* x;  // (batch, length, channels) at these steps, in elements; channels are contiguous
  int64_t batch_stride, token_stride;
  const float* weight;        // (channels, taps)
  const float* bias;          // (channels) or null
  const void* past;           // (batch, taps - 1, channels), contiguous, or null
  const int32_t* cu_seqlens;  // (documents + 1) or null
  int documents;
  int64_t batch, length, channels;
  int64_t first_sequence = 0, first_block = 0;  // of a launch: those of the blocks with z = 0 and with y = 0
  int taps;                                     // 1 to 8
  void* y;                                      // forward, contiguous
  const void* d_y;                              // backward, contiguous
  void* d_x;                                    // contiguous
  float* parts;  // (short_convolution_parts, taps + 1, channels): of d_weight and d_bias, to be added
};

void short_convolution(const ShortConvolution& arguments, cudaStream_t stream);

int64_t short_convolution_parts(const ShortConvolution& arguments);
void short_convolution_backward(const ShortConvolution& arguments, cudaStream_t stream);

}  // namespace lazy::ops::cuda
