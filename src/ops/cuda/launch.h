// Errors of launches.
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

}  // namespace lazy::ops::cuda
