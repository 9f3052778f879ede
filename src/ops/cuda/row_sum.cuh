// Rows shared by threads: a block of blockDim.y rows, blockDim.x threads each (8, 16 or whole warps), four vectors a
// thread.
#pragma once
#include <algorithm>
#include <cstdint>

#include "ops/cuda/vector.cuh"

namespace lazy::ops::cuda {

constexpr int kHeld = 4;  // vectors that a thread holds: as many loads in flight a tensor

// Threads for a row of so many vectors, at most `most`.
inline int threads_per_row(int64_t vectors, int most) {
  const int64_t wanted = (vectors + kHeld - 1) / kHeld;
  for (const int few : {8, 16, 32}) {
    if (wanted <= few) return few;
  }
  return static_cast<int>(std::min<int64_t>((wanted + 31) / 32 * 32, most));
}

// Sums each number over the threads of a row. Every thread of the block takes part. `room` is shared memory for a
// number and warp; two calls with the same `room` need a __syncthreads between them.
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

// N neighbouring weights, fp32 or of the rows' type.
template <typename W, int N>
__device__ void load_weights(const W* weight, float (&out)[N]) {
  if constexpr (std::is_same_v<W, float>) {
    load_floats<N>(weight, out);
  } else {
    expand<W, N>(load<W, N>(weight), out);
  }
}

// function(T{}, W{}) for the types of the rows and of the weight.
template <typename Function>
void with_types(kernels::DType type, kernels::DType weight_type, const Function& function) {
  with_type(type, [&](auto zero) {
    if (weight_type == kernels::DType::f32) return function(zero, float{});
    function(zero, zero);
  });
}

}  // namespace lazy::ops::cuda
