// The check of packed documents' cumulative lengths on the GPU, for calls that a CUDA graph records: the host cannot
// read them then, and a replay may find others.
#pragma once
#include <cuda_runtime_api.h>

#include <cstdint>

namespace lazy::ops::cuda {

struct CumulativeLengths {
  const void* data = nullptr;  // (count) int32, or int64 if wide; device memory
  bool wide = false;
  int64_t count = 0, tokens = 0;
  bool of_keys = false;  // the argument's name in the message: cu_seqlens_k, otherwise cu_seqlens_q
};

// Queues a kernel that ends with a message and a CUDA error unless the lengths ascend from 0 to `tokens`.
void check_cumulative_lengths(const CumulativeLengths& lengths, cudaStream_t stream);

}  // namespace lazy::ops::cuda
