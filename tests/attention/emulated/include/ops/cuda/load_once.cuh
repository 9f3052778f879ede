// Replaces src/ops/cuda/load_once.cuh in the CPU emulator that runs CUDA kernels in tests. The functions do not use
// PTX.
#pragma once
#include <cuda_runtime.h>

namespace lazy::ops::cuda {

template <typename X>
void load_once(X& x, const void* from) {
  x = *static_cast<const X*>(from);
}

}  // namespace lazy::ops::cuda
