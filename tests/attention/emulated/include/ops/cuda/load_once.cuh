// Replaces src/ops/cuda/load_once.cuh in the emulator, without PTX.
#pragma once
#include <cuda_runtime.h>

namespace lazy::ops::cuda {

template <typename X>
void load_once(X& x, const void* from) {
  x = *static_cast<const X*>(from);
}

}  // namespace lazy::ops::cuda
