// Errors of launches, and what they may ask for.
#pragma once
#include <cuda_runtime_api.h>

#include <stdexcept>
#include <string>

namespace lazy::ops::cuda {

inline void check(cudaError_t status, const char* operation) {
  if (status != cudaSuccess) {
    throw std::runtime_error(std::string("lazy::") + operation + ": CUDA reports " + cudaGetErrorString(status));
  }
}

// After a kernel's launch.
inline void check_launch(const char* operation) { check(cudaGetLastError(), operation); }

// Bytes of shared memory that a block of the current GPU may ask for.
inline int most_shared_memory(const char* operation) {
  int device = 0, most = 0;
  check(cudaGetDevice(&device), operation);
  check(cudaDeviceGetAttribute(&most, cudaDevAttrMaxSharedMemoryPerBlockOptin, device), operation);
  return most;
}

}  // namespace lazy::ops::cuda
