// dQ on Hopper: fp32 sums to which every block of keys adds, and the kernel that makes d_q of them. The sums lie as the
// products' accumulators do: a thread's numbers are four in a row.
#pragma once
#include "attention/cuda/hopper_rows.cuh"

namespace lazy::kernels::cuda::hopper {

__device__ inline void reduce_add(float* to, float a, float b, float c, float d) {
  asm volatile("red.global.add.v4.f32 [%0], {%1, %2, %3, %4};" ::"l"(to), "f"(a), "f"(b), "f"(c), "f"(d) : "memory");
}

// Sums of a tile of 64 rows: (batch, head, tile) then 64 D numbers, 256 threads x D / 4.
__device__ inline float* hopper_dq(const Params& p, const Tile& t, int D, int head, int tiles, int tile) {
  return p.dq_sum + ((static_cast<int64_t>(t.batch) * p.heads + head) * tiles + tile) * 64 * D;
}

// d_q = scale * sums, a block a tile of 64 rows, through shared memory so that rows leave in 16 bytes.
template <typename T, int D>
__global__ void __launch_bounds__(256) finish_dq(const __grid_constant__ Params p, int row_tiles) {
  constexpr int stride = D + 8;  // numbers; 8 more against bank conflicts
  __shared__ __align__(16) T tile_of[64 * stride];
  Tile t;
  t.head = blockIdx.y;
  t.batch = blockIdx.x / row_tiles;
  const int tile = blockIdx.x % row_tiles;
  if (!locate(p, tile, 64, false, t)) return;
  const int w = threadIdx.x / 128, warp = threadIdx.x / 32 % 4, lane = threadIdx.x % 32;
  const float4* from = reinterpret_cast<const float4*>(hopper_dq(p, t, D, t.head, row_tiles, tile)) + threadIdx.x;
  float4 x[D / 16];
#pragma unroll
  for (int n = 0; n < D / 16; ++n) x[n] = __ldcs(from + n * 256);
#pragma unroll
  for (int n = 0; n < D / 16; ++n) {
    T* to = tile_of + (warp * 16 + lane / 4) * stride + w * D / 2 + 8 * n + 2 * (lane % 4);
    *reinterpret_cast<uint32_t*>(to) = pack<T>(p.scale * x[n].x, p.scale * x[n].y);
    *reinterpret_cast<uint32_t*>(to + 8 * stride) = pack<T>(p.scale * x[n].z, p.scale * x[n].w);
  }
  __syncthreads();
  T* to = static_cast<T*>(p.d_q.data) + q_offset(p.d_q, t, t.head, t.first);
#pragma unroll
  for (int n = threadIdx.x; n < 64 * (D / 8); n += 256) {
    const int row = n / (D / 8), chunk = n % (D / 8);
    if (t.first + row < t.q_length) {
      *reinterpret_cast<uint4*>(to + row * p.d_q.token + chunk * 8) =
          *reinterpret_cast<const uint4*>(tile_of + row * stride + chunk * 8);
    }
  }
}

}  // namespace lazy::kernels::cuda::hopper
