// Softmax's first kernel of the Hopper backward where nothing in fp32 is asked of it: center = dO . o from the
// forward's output. Its rounding is of the size of the gradients' own.
#pragma once
#include "attention/cuda/hopper_rows.cuh"

namespace lazy::kernels::cuda::hopper {

template <typename T>
__device__ float dot8(const uint4& a, const uint4& b) {
  const T *x = reinterpret_cast<const T*>(&a), *y = reinterpret_cast<const T*>(&b);
  float sum = 0;
#pragma unroll
  for (int n = 0; n < 8; ++n) sum = fmaf(static_cast<float>(x[n]), static_cast<float>(y[n]), sum);
  return sum;
}

// A block a tile of 64 rows. A row's state: lse in log2, then factor and center so that ds = p (factor g - center).
template <typename T, int D>
__global__ void __launch_bounds__(256) backward_delta(const __grid_constant__ Params p, int row_tiles) {
  constexpr int lanes = D / 8;  // of a row
  Tile t;
  t.head = blockIdx.y;
  t.batch = blockIdx.x / row_tiles;
  if (!locate(p, blockIdx.x % row_tiles, 64, false, t)) return;
  const int part = threadIdx.x % lanes;
#pragma unroll
  for (int n = 0; n < 64 * lanes / 256; ++n) {
    const int row = t.first + threadIdx.x / lanes + n * (256 / lanes);
    const bool there = row < t.q_length;
    float delta = 0;
    if (there) {
      const T* out = static_cast<const T*>(p.out.data) + q_offset(p.out, t, t.head, row);
      const T* d_out = static_cast<const T*>(p.d_out.data) + q_offset(p.d_out, t, t.head, row);
      delta = dot8<T>(reinterpret_cast<const uint4*>(out)[part], reinterpret_cast<const uint4*>(d_out)[part]);
    }
#pragma unroll
    for (int d = 1; d < lanes; d *= 2) delta += __shfl_xor_sync(~0u, delta, d);
    if (!there || part != 0) continue;
    const Keys keys = visible(p, t, row);
    // A row's only key has p = 1 whatever its score: its gradient is exactly zero.
    const bool alone = keys.end - keys.begin == 1 && p.normalizer == Normalizer::softmax;
    const float lse = p.lse[row_index(p, t, t.head, row)] * kLog2e;
    float* const state = row_state(p, t, t.head, row_tiles, blockIdx.x % row_tiles) + row - t.first;
    state[0] = lse == -INFINITY ? 0 : lse;
    state[64] = alone ? 0 : 1;
    state[128] = alone ? 0 : delta;
  }
}

}  // namespace lazy::kernels::cuda::hopper
