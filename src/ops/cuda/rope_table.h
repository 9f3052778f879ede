// The RoPE table of cosines and sines in GPU memory.
#pragma once
#include <cstdint>
#include <vector>

#include "ops/cuda/rows.h"

namespace lazy::ops::cuda {

// Creates a table of positions [0, positions) on the current device. Its memory is never freed, because running kernels
// and captured CUDA graphs may read it. Waits until the table is complete, so that every stream may read it
// immediately. The call is also allowed while a stream is capturing a CUDA graph. Throws std::runtime_error if memory
// is exhausted.
RopeTable make_rope_table(const std::vector<double>& frequency, double attention_factor, int64_t positions);

}  // namespace lazy::ops::cuda
