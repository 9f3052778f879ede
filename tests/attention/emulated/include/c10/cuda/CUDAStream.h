// Replaces PyTorch's CUDAStream.h in the CPU emulator that runs CUDA kernels in tests. Streams have no effect, because
// launches are synchronous.
#pragma once
#include <cuda_runtime.h>

namespace c10::cuda {
inline cudaStream_t getCurrentCUDAStream() { return nullptr; }
}  // namespace c10::cuda
