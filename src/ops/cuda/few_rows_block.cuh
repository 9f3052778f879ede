// What the kernels of products of more than a few rows share, in which a block has tiles of W and of x: the norm in
// front of them, and what a block makes of its products.
#pragma once
#include "attention/cuda/decode_memory.cuh"
#include "attention/cuda/decode_params.h"
#include "ops/cuda/few_rows.cuh"

namespace lazy::ops::cuda::step {

constexpr int kChunkBytes = 2 * kChunk;    // of a row
constexpr int kPieces = kChunkBytes / 16;  // of a row of a chunk, as they are copied
constexpr int kGroupBytes = 8 * kChunkBytes;

inline unsigned ceil_div(int64_t x, int64_t by) { return static_cast<unsigned>((x + by - 1) / by); }

// Packed x (few_rows_hopper.cu): (chunks, groups of 8 rows, 4 matrices, 8 rows, 16 bytes).
__host__ __device__ inline int groups_of(int rows) { return (rows + 7) / 8; }
__device__ inline char* packed_chunk(const FewRows& p, int groups, int chunk) {
  return static_cast<char*>(p.weighed) + static_cast<int64_t>(chunk) * groups * kGroupBytes;
}
// Piece c of a row of a group's chunk at `to`.
__device__ inline void store_packed(char* to, int row, int c, const uint4& x) {
  char* const at = to + row * 16 + c * 4;
  *reinterpret_cast<uint32_t*>(at) = x.x;
  *reinterpret_cast<uint32_t*>(at + 128) = x.y;
  *reinterpret_cast<uint32_t*>(at + 256) = x.z;
  *reinterpret_cast<uint32_t*>(at + 384) = x.w;
}

// x times its norm's weights, if any, and what every row's products are to be multiplied by. A warp a row; a lane has
// the same numbers as in few_rows.cu, so that squares add up alike.
constexpr int kNormThreads = 128;
template <typename T, bool PACKED>
__global__ void __launch_bounds__(kNormThreads) weigh_rows(const __grid_constant__ FewRows p) {
  kernels::cuda::decoding::let_next_start();
  kernels::cuda::decoding::wait_for_launcher();
  const int lane = threadIdx.x % 32, in = static_cast<int>(p.in);
  const int64_t row = blockIdx.x * (kNormThreads / 32) + threadIdx.x / 32;
  if (row >= p.rows) return;
  const auto* const from = reinterpret_cast<const uint4*>(static_cast<const T*>(p.x) + row * p.x_stride);
  [[maybe_unused]] const int groups = groups_of(static_cast<int>(p.rows));
  constexpr int kAtOnce = 4;  // pieces of 8 numbers that a lane asks for before it stores one
  float squares = 0;
  for (int first = lane; first < in / 8; first += 32 * kAtOnce) {
    uint4 x[kAtOnce];
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i) {
      const int n = first + 32 * i;
      if (n < in / 8) x[i] = __ldcg(from + n);
    }
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i) {
      const int n = first + 32 * i;
      if (n >= in / 8) continue;
      if (p.norm_weight) {
        const auto* const weights = reinterpret_cast<const float4*>(p.norm_weight) + 2 * n;
        x[i] = weigh<T>(x[i], __ldg(weights), __ldg(weights + 1), squares);
      }
      if constexpr (PACKED) {
        store_packed(packed_chunk(p, groups, n / kPieces) + row / 8 * kGroupBytes, row % 8, n % kPieces, x[i]);
      } else {
        reinterpret_cast<uint4*>(static_cast<T*>(p.weighed) + row * p.in)[n] = x[i];
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
void start_weighing(const FewRows& p, cudaStream_t stream) {
  kernels::cuda::decoding::start<weigh_rows<T, PACKED>>(p, ceil_div(p.rows, kNormThreads / 32), kNormThreads, 0, true,
                                                        stream);
}

__device__ inline float4 operator+(const float4& x, const float4& y) {
  return {x.x + y.x, x.y + y.y, x.z + y.z, x.w + y.w};
}
__device__ inline float4 operator*(const float4& x, float by) { return {x.x * by, x.y * by, x.z * by, x.w * by}; }

// Four neighbouring columns of a row, from a multiple of four on: what is added to them, the sum, its way to y.
__device__ inline uint2 load_added(const FewRows& p, int row, int column) {
  const int out = static_cast<int>(p.out);
  const auto* const from = static_cast<const uint16_t*>(p.add) + static_cast<int64_t>(row) * out + column;
  if (out % 4 == 0) return __ldcg(reinterpret_cast<const uint2*>(from));
  const auto number = [&](int i) { return column + i < out ? uint32_t{__ldcg(from + i)} : 0; };
  return {number(0) | number(1) << 16, number(2) | number(3) << 16};
}
template <typename T>
__device__ float4 add_rounded(const float4& y, const uint2& add) {
  const float2 a = kernels::cuda::unpack<T>(add.x), b = kernels::cuda::unpack<T>(add.y);
  return {rounded<T>(y.x) + a.x, rounded<T>(y.y) + a.y, rounded<T>(y.z) + b.x, rounded<T>(y.w) + b.y};
}
template <typename T>
__device__ void store_quad(const FewRows& p, int row, int column, const float4& y) {
  const int out = static_cast<int>(p.out);
  const int64_t to = static_cast<int64_t>(row) * out + column;
  const float one[4] = {y.x, y.y, y.z, y.w};
  if (p.wide) {
    auto* const result = static_cast<float*>(p.y) + to;
    if (out % 4 == 0) {
      *reinterpret_cast<float4*>(result) = y;
    } else {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        if (column + i < out) result[i] = one[i];
      }
    }
  } else {
    const uint2 both{kernels::cuda::pack<T>(y.x, y.y), kernels::cuda::pack<T>(y.z, y.w)};
    auto* const result = static_cast<uint16_t*>(p.y) + to;
    if (out % 4 == 0) {
      *reinterpret_cast<uint2*>(result) = both;
    } else {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        if (column + i < out) result[i] = static_cast<uint16_t>((i < 2 ? both.x : both.y) >> i % 2 * 16);
      }
    }
  }
}

// A block's COLUMNS of ROWS rows of x, from its first ones on, once its products are stored: product(m, r, half) are
// those of its row m and its columns from r on, scale_of(m) what they are multiplied by.
template <typename T, Mode MODE, int COLUMNS, int ROWS, int THREADS, typename Scale, typename Product>
__device__ void finish_block(const FewRows& p, int first_row, int first_column, const Place* places,
                             const Scale& scale_of, const Product& product) {
  constexpr int kQuads = COLUMNS / 4;  // a thread has four neighbouring columns of y at a time
  constexpr int kEach = (kQuads * ROWS + THREADS - 1) / THREADS;
  struct Quad {
    int m, r, row, column;
    bool there;
  };
  const auto quad_of = [&](int n) {
    const int m = n / kQuads, r = n % kQuads * 4, row = first_row + m, column = first_column + r;
    return Quad{m, r, row, column, n < kQuads * ROWS && row < p.rows && column < p.out};
  };
  if constexpr (MODE == Mode::pages) {
    Angles<4> by[kEach];
#pragma unroll
    for (int i = 0; i < kEach; ++i) {
      const Quad a = quad_of(threadIdx.x + i * THREADS);
      if (a.there) by[i] = angles_of<4>(p.pages, pair_of(p.pages, a.column), places[a.m]);
    }
    __syncthreads();
#pragma unroll
    for (int i = 0; i < kEach; ++i) {
      const auto [m, r, row, column, there] = quad_of(threadIdx.x + i * THREADS);
      if (!there) continue;
      const float scale = scale_of(m);
      const float4 x = product(m, r, 0) * scale, y = product(m, r, 1) * scale;
      store_pairs<T, 4>(p.pages, row, pair_of(p.pages, column), places[m], by[i], {x.x, x.y, x.z, x.w},
                        {y.x, y.y, y.z, y.w});
    }
  } else {
    __syncthreads();
    for (int n = threadIdx.x; n < kQuads * ROWS; n += THREADS) {
      const auto [m, r, row, column, there] = quad_of(n);
      if (!there) continue;
      const float scale = scale_of(m);
      float4 y = product(m, r, 0) * scale;
      if constexpr (MODE == Mode::swiglu) {
        const float4 up = product(m, r, 1) * scale;
        y = {swiglu<T>(y.x, up.x), swiglu<T>(y.y, up.y), swiglu<T>(y.z, up.z), swiglu<T>(y.w, up.w)};
      } else if (p.add) {
        y = add_rounded<T>(y, load_added(p, row, column));
      }
      store_quad<T>(p, row, column, y);
    }
  }
}

}  // namespace lazy::ops::cuda::step
