// Checks the cumulative lengths of packed documents on the GPU, for calls that are captured in a CUDA graph: the host
// cannot read the lengths during the capture, and they may differ in each replay.
#pragma once
#include <cuda_runtime_api.h>

#include <cstdint>

namespace lazy::ops::cuda {

struct CumulativeLengths {
  const void* data = nullptr;  // (count) int32, or int64 if wide; device memory
  bool wide = false;
  int64_t count = 0, tokens = 0;
  bool of_keys = false;  // name in the message: cu_seqlens_k if true, otherwise cu_seqlens_q
};

// Launches a kernel that prints a message and traps unless the lengths are nondecreasing from 0 to `tokens`.
void check_cumulative_lengths(const CumulativeLengths& lengths, cudaStream_t stream);

}  // namespace lazy::ops::cuda
