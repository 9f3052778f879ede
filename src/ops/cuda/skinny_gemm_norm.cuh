// The kernel that runs before products with large tiles (skinny_gemm_tiles.cu, skinny_gemm_hopper.cu). It multiplies x
// by the norm weights, so that the norm is not computed again for every tile of W.
#pragma once
#include "attention/cuda/decode_memory.cuh"
#include "attention/cuda/decode_params.h"
#include "ops/cuda/skinny_gemm_finish.cuh"

namespace lazy::ops::cuda::step {

constexpr int kChunkBytes = 2 * kChunk;    // number of bytes per row of a chunk (kChunk 16-bit elements)
constexpr int kPieces = kChunkBytes / 16;  // number of 16-byte pieces per row of a chunk
constexpr int kGroupBytes = 8 * kChunkBytes;

// Packed x, as skinny_gemm_hopper.cu uses it, has the shape (chunks, groups of 8 rows, 4 matrices, 8 rows, 16 bytes).
__device__ inline int groups_of(int rows) { return (rows + 7) / 8; }
__device__ inline char* packed_chunk(const SkinnyGemm& p, int groups, int chunk) {
  return static_cast<char*>(p.scaled_x) + static_cast<int64_t>(chunk) * groups * kGroupBytes;
}
// Stores 16-byte piece c of a row to the packed chunk of the row's group at `to`.
__device__ inline void store_packed(char* to, int row, int c, const uint4& x) {
  char* const at = to + row * 16 + c * 4;
  *reinterpret_cast<uint32_t*>(at) = x.x;
  *reinterpret_cast<uint32_t*>(at + 128) = x.y;
  *reinterpret_cast<uint32_t*>(at + 256) = x.z;
  *reinterpret_cast<uint32_t*>(at + 384) = x.w;
}

// Multiplies x by its norm weights, if there are any, and computes the reciprocal root mean square of each row, by
// which the products are multiplied later. A warp processes one row. Each lane has the same elements as in
// skinny_gemm.cu, so that the sum of squares is bitwise equal.
constexpr int kNormThreads = 128;
template <typename T, bool PACKED>
__global__ void __launch_bounds__(kNormThreads) apply_norm_weights(const __grid_constant__ SkinnyGemm p) {
  constexpr int kAtOnce = 4;  // number of pieces of 8 elements that a lane loads before it stores the first one
  const int lane = threadIdx.x % 32, in = static_cast<int>(p.in);
  float4 weights[kAtOnce][2];
  const auto load_weights = [&](int first) {
#pragma unroll
    for (int i = 0; i < 2 * kAtOnce; ++i) {
      const int n = first + 32 * (i / 2);
      if (p.norm_weight && n < in / 8) {
        weights[i / 2][i % 2] = __ldg(reinterpret_cast<const float4*>(p.norm_weight) + 2 * n + i % 2);
      }
    }
  };
  kernels::cuda::decoding::let_next_start();
  load_weights(lane);
  kernels::cuda::decoding::wait_for_launcher();
  const int64_t row = blockIdx.x * (kNormThreads / 32) + threadIdx.x / 32;
  if (row >= p.rows) return;
  const auto* const from = reinterpret_cast<const uint4*>(static_cast<const T*>(p.x) + row * p.x_stride);
  [[maybe_unused]] const int groups = groups_of(static_cast<int>(p.rows));
  float squares = 0;
  for (int first = lane; first < in / 8; first += 32 * kAtOnce) {
    uint4 x[kAtOnce];
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i) {
      const int n = first + 32 * i;
      if (n < in / 8) x[i] = __ldcg(from + n);
    }
    if (first != lane) load_weights(first);
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i) {
      const int n = first + 32 * i;
      if (n >= in / 8) continue;
      if (p.norm_weight) x[i] = apply_norm_weight<T>(x[i], weights[i][0], weights[i][1], squares);
      if constexpr (PACKED) {
        store_packed(packed_chunk(p, groups, n / kPieces) + row / 8 * kGroupBytes, row % 8, n % kPieces, x[i]);
      } else {
        reinterpret_cast<uint4*>(static_cast<T*>(p.scaled_x) + row * p.in)[n] = x[i];
      }
    }
  }
  if (!p.norm_weight) return;
  squares += __shfl_xor_sync(~0u, squares, 1);
  squares += __shfl_xor_sync(~0u, squares, 2);
  float all = 0;
  for (int part = 0; part < kParts; ++part) all += __shfl_sync(~0u, squares, 4 * part);
  if (lane == 0) p.scales[row] = 1 / sqrtf(all / static_cast<float>(in) + p.eps);
}
template <typename T, bool PACKED>
void start_norm_weights(const SkinnyGemm& p, cudaStream_t stream) {
  kernels::cuda::decoding::start<apply_norm_weights<T, PACKED>>(p, ceil_div(p.rows, kNormThreads / 32), kNormThreads, 0,
                                                                true, stream);
}

}  // namespace lazy::ops::cuda::step
