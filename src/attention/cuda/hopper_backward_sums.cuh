// Sums of the Hopper backward that leave the registers: the gradient of the distance bias, and dQ.
#pragma once
#include "attention/cuda/hopper_rows.cuh"

namespace lazy::kernels::cuda::hopper {

// Gradient of the distance bias within a block of keys: sums of ds along diagonals. Each warp sums the
// diagonals of its 16 keys x 64 rows in its own scratch memory; a warpgroup's four parts are added one step later,
// after a barrier that ds needs anyway. The order of all sums is fixed.
struct Diagonals {
  static constexpr int width = 80;  // a warp's diagonals (79), row - key from -15 on
  static constexpr int scratch = 8 * width + 8, parts = 2 * 8 * width, floats = 8 * scratch + parts;
  float* memory;  // eight scratches, parts of two steps, the warpgroups' sums by distance
  int window;

  // `thread`: of the block's 256 consumers. Zeros stay around the scratch's rows: 8, then 72 numbers, for each of eight
  // keys, and 8 more.
  __device__ void start(int thread) {
    for (int n = thread; n < floats + 2 * window; n += 256) memory[n] = 0;
    asm volatile("bar.sync 1, 256;" ::: "memory");
  }
  // ds of a warp's keys x rows, as accumulators hold it: row r + 8 at column block n + 1 lies where row r does at block
  // n.
  __device__ void put(int thread, const float (&ds)[32], int step) {
    const int lane = thread % 32, warp = thread / 32;
    float* const own = memory + warp * scratch;
    float* const to = own + lane / 4 * width + 8 + 2 * (lane % 4);
    __syncwarp();
#pragma unroll
    for (int n = -1; n < 8; ++n) {
      float x[2];
#pragma unroll
      for (int e = 0; e < 2; ++e) {
        const float upper = n >= 0 ? ds[4 * max(n, 0) + e] : 0, lower = n < 7 ? ds[4 * min(n + 1, 7) + 2 + e] : 0;
        x[e] = upper + lower;
      }
      *reinterpret_cast<float2*>(to + 8 * (n + 1)) = make_float2(x[0], x[1]);
    }
    __syncwarp();
#pragma unroll
    for (int y = lane; y < width; y += 32) {
      float sum = 0;
#pragma unroll
      for (int r = 0; r < 8; ++r) sum += own[r * (width + 1) + y + 1];
      memory[8 * scratch + (step % 2 * 8 + warp) * width + y] = sum;
    }
  }
  // Once all warps have put that step: `nearest` is the distance of the warpgroup's last key from the first row.
  __device__ void take(int thread, int step, int nearest) {
    const int group = thread / 128, x = thread % 128, distance = nearest + x;
    const float* const parts_of = memory + 8 * scratch + (step % 2 * 8 + group * 4) * width;
    if (x >= 127 || distance < 0 || distance >= window) return;
    float sum = 0;
#pragma unroll
    for (int w = 0; w < 4; ++w) {
      const int y = x - 48 + 16 * w;
      if (y >= 0 && y < width - 1) sum += parts_of[w * width + y];
    }
    memory[floats + group * window + distance] += sum;
  }
  // A head's sums, to its slab. Barriers of all consumers stand around it.
  __device__ void move(int thread, float* slab) {
    float* const sums = memory + floats;
    for (int n = thread; n < window; n += 256) {
      slab[n] = sums[n] + sums[window + n];
      sums[n] = sums[window + n] = 0;
    }
  }
};

// dQ: fp32 sums to which every block of keys adds atomically, and the kernel that converts them to d_q. The sums are
// laid out like the products' accumulators: four consecutive numbers per thread.
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
    if (t.first + row < t.q_length && chunk * 8 < p.head_dim) {
      *reinterpret_cast<uint4*>(to + row * p.d_q.token + chunk * 8) =
          *reinterpret_cast<const uint4*>(tile_of + row * stride + chunk * 8);
    }
  }
}

}  // namespace lazy::kernels::cuda::hopper
