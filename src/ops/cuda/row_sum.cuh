// Sums over rows that are shared by several threads. A block has blockDim.y rows and blockDim.x threads per row (8, 16
// or a multiple of 32), with four vectors per thread.
#pragma once
#include <algorithm>
#include <cstdint>

#include "ops/cuda/vector.cuh"

namespace lazy::ops::cuda {

constexpr int kHeld = 4;  // number of vectors per thread, which is also the number of loads in flight per tensor

// Returns the number of threads, up to `most`, for a row of `vectors` vectors.
inline int threads_per_row(int64_t vectors, int most) {
  const int64_t wanted = (vectors + kHeld - 1) / kHeld;
  for (const int few : {8, 16, 32}) {
    if (wanted <= few) return few;
  }
  return static_cast<int>(std::min<int64_t>((wanted + 31) / 32 * 32, most));
}

// Sums each of COUNT values over the threads of a row. All threads of the block must call this function. The second
// argument is shared memory, with one number per value and warp. If two calls use the same memory, a __syncthreads is
// required between them.
template <int COUNT>
__device__ void row_sum(float (&x)[COUNT], float (&room)[COUNT][32]) {
  for (int step = min(blockDim.x, 32) / 2; step > 0; step /= 2) {
#pragma unroll
    for (int c = 0; c < COUNT; ++c) x[c] += __shfl_xor_sync(0xffffffffu, x[c], step);
  }
  if (blockDim.x <= 32) return;
  const int warps = blockDim.x / 32, first = threadIdx.y * warps;
  if (threadIdx.x % 32 == 0) {
#pragma unroll
    for (int c = 0; c < COUNT; ++c) room[c][first + threadIdx.x / 32] = x[c];
  }
  __syncthreads();
#pragma unroll
  for (int c = 0; c < COUNT; ++c) {
    x[c] = 0;
    for (int w = 0; w < warps; ++w) x[c] += room[c][first + w];
  }
}

// Loads N adjacent weights, fp32 or in the dtype of the rows.
template <typename W, int N>
__device__ void load_weights(const W* weight, float (&out)[N]) {
  if constexpr (std::is_same_v<W, float>) {
    load_floats<N>(weight, out);
  } else {
    expand<W, N>(load<W, N>(weight), out);
  }
}

// Calls function(T{}, W{}) for the dtypes of the rows and of the weight.
template <typename Function>
void with_types(kernels::DType type, kernels::DType weight_type, const Function& function) {
  with_type(type, [&](auto zero) {
    if (weight_type == kernels::DType::f32) return function(zero, float{});
    function(zero, zero);
  });
}

}  // namespace lazy::ops::cuda
