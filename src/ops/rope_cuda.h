// The cached tables of cosines and sines on a GPU.
#pragma once
#include <cstdint>

#include "ops/cuda/rope_table.h"
#include "ops/rope.h"

namespace lazy::ops {

// Returns a table of at least `positions` positions, cached for the process. The size of the table doubles when it
// grows. Previous tables are kept because running kernels and CUDA graphs may still read them; together they use less
// memory than the current table.
cuda::RopeTable rope_table(const RopeArguments& a, int64_t positions, int8_t device);

// Computes lazy::rope and writes the result to y, which has the shape and dtype of x. The heads of y must be
// contiguous, and the tokens of all sequences must have one common stride.
void rope_into(const at::Tensor& x, const RopeArguments& a, bool inverse, const OptionalTensor& positions,
               at::Tensor& y);

}  // namespace lazy::ops
