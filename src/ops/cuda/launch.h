// Error checks of kernel launches, and limits of a launch.
#pragma once
#include <cuda_runtime_api.h>

#include <algorithm>
#include <cstdint>
#include <stdexcept>
#include <string>

namespace lazy::ops::cuda {

inline void check(cudaError_t status, const char* operation) {
  if (status != cudaSuccess) {
    throw std::runtime_error(std::string("lazy::") + operation + ": CUDA reports " + cudaGetErrorString(status));
  }
}

// Throws if the preceding kernel launch failed. Must be called after each kernel launch.
inline void check_launch(const char* operation) { check(cudaGetLastError(), operation); }

// Maximum number of blocks of a grid along y and along z.
#ifndef LAZY_GRID_LIMIT  // tests set a lower limit, so that small batches exceed it
#define LAZY_GRID_LIMIT 65535
#endif
constexpr int64_t kGridLimit = LAZY_GRID_LIMIT;

// Calls part(first, count) for successive ranges of items (such as the sequences of a batch) that are mapped to the y
// or z axis of a grid. Each range fits in one launch. `each` is the number of blocks per item.
template <typename Function>
void in_parts(int64_t count, const Function& part, int64_t each = 1) {
  const int64_t most = kGridLimit / each;
  for (int64_t first = 0; first < count; first += most) part(first, std::min(most, count - first));
}

// Maximum number of bytes of shared memory per block on the current GPU.
inline int most_shared_memory(const char* operation) {
  int device = 0, most = 0;
  check(cudaGetDevice(&device), operation);
  check(cudaDeviceGetAttribute(&most, cudaDevAttrMaxSharedMemoryPerBlockOptin, device), operation);
  return most;
}

}  // namespace lazy::ops::cuda
