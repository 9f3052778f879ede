// src/ops/cuda/load_once.cuh without PTX, for the emulator.
#pragma once
#include <cuda_runtime.h>

namespace lazy::ops::cuda {

template <typename X>
void load_once(X& x, const void* from) {
  x = *static_cast<const X*>(from);
}

}  // namespace lazy::ops::cuda
