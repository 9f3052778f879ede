// Replaces PyTorch's header in the CPU emulator that runs CUDA kernels in tests, whose only device is the CPU.
#pragma once
#include <c10/core/Device.h>

namespace c10::cuda {
struct CUDAGuard {
  explicit CUDAGuard(Device) {}
};
}  // namespace c10::cuda
