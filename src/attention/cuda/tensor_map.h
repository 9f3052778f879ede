// Host side of TMA.
#pragma once
#include <cuda.h>

#include "attention/cuda/params.h"

namespace lazy::kernels::cuda {

// Boxes of 64 dims of `rows` tokens of one head, in 128-byte swizzled rows; what lies outside the tensor reads as zero.
CUtensorMap tensor_map(const Params& p, const Tensor& x, int heads, int tokens, int rows);

}  // namespace lazy::kernels::cuda
