// The cached tables of cosines and sines on a GPU.
#pragma once
#include <cstdint>

#include "ops/cuda/rope_table.h"
#include "ops/rope.h"

namespace lazy::ops {

// A table of at least `positions`, cached for the process. It doubles when it grows, so the previous tables, which
// kernels in flight and CUDA graphs may still read, take less memory than the current one.
cuda::RopeTable rope_table(const RopeArguments& a, int64_t positions, int8_t device);

// lazy::rope into y, of x's shape and type: heads without gaps, one stride for the tokens of all sequences.
void rope_into(const at::Tensor& x, const RopeArguments& a, bool inverse, const OptionalTensor& positions,
               at::Tensor& y);

}  // namespace lazy::ops
