// Kernel launch with dynamic shared memory and error checks.
#pragma once
#include <cuda_runtime.h>

#include "attention/cuda/params.h"

namespace lazy::kernels::cuda {

// Launches `kernel`; does nothing for an empty grid. shared_bytes is the dynamic shared memory in bytes. Static and
// dynamic shared memory together may exceed the default limit of 48 KiB per block, so the limit is raised for any
// dynamic shared memory. Throws std::runtime_error with `what` in its message if CUDA rejects the launch.
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
