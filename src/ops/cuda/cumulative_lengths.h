// Checks the cumulative lengths of packed documents on the GPU. The check is for attention calls that are captured in a
// CUDA graph: the host cannot read the lengths during the capture, and the lengths may differ in each replay.
#pragma once
#include <cuda_runtime_api.h>

#include <cstdint>

namespace lazy::ops::cuda {

struct CumulativeLengths {
  const void* data = nullptr;  // (count) int32, or int64 if wide; device memory
  bool wide = false;
  int64_t count = 0, tokens = 0;
  bool of_keys = false;  // the error message names cu_seqlens_k if true, otherwise cu_seqlens_q
};

// Launches a kernel that checks that the lengths are nondecreasing, begin with 0 and end with `tokens`. If they are
// not, the kernel prints a message and traps.
void check_cumulative_lengths(const CumulativeLengths& lengths, cudaStream_t stream);

}  // namespace lazy::ops::cuda
