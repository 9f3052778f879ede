// Replaces PyTorch's CUDAGuard.h in the CPU emulator that runs CUDA kernels in tests. The guard does nothing, because
// the only device is the CPU.
#pragma once
#include <c10/core/Device.h>

namespace c10::cuda {
struct CUDAGuard {
  explicit CUDAGuard(Device) {}
};
}  // namespace c10::cuda
