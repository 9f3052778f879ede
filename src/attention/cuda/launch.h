// Launches of kernels.
#pragma once
#include <cuda_runtime.h>

#include "attention/cuda/params.h"

namespace lazy::kernels::cuda {

// `shared_bytes`: of dynamic shared memory. With a kernel's static one it may exceed the 48 KiB that a block has
// without being asked for, so any of it is asked for. Nothing for an empty grid. Throws std::runtime_error that names
// `what` where CUDA refuses.
template <typename... P, typename... A>
void launch(const char* what, void (*kernel)(P...), dim3 grid, int threads, size_t shared_bytes, cudaStream_t stream,
            const A&... arguments) {
  if (grid.x == 0 || grid.y == 0 || grid.z == 0) return;
  if (shared_bytes > 0) {
    check(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(shared_bytes)),
          what);
  }
  cudaLaunchConfig_t config{};
  config.gridDim = grid;
  config.blockDim = static_cast<unsigned>(threads);
  config.dynamicSmemBytes = shared_bytes;
  config.stream = stream;
  check(cudaLaunchKernelEx(&config, kernel, arguments...), what);
}

}  // namespace lazy::kernels::cuda
