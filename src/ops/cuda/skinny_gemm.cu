// Skinny GEMM y = x W^T on tensor cores for up to eight rows of x; W is read only once. In the mma instruction, rows of
// W are the rows of operand A, and rows of x are the columns of operand B. The inner dimension may be processed in any
// order. Each lane therefore uses the 16 bytes that it loads as fragments, without rearranging them. A block processes
// 16 rows of W (with SwiGLU, 16 rows of each half of W). Each warp sums a part of the inner dimension; one step
// processes one chunk of this part. The weights of the first steps are loaded before the previous kernel has finished
// (programmatic dependent launch).
#include <algorithm>

#include "attention/cuda/decode_memory.cuh"
#include "attention/cuda/decode_params.h"
#include "ops/cuda/skinny_gemm.cuh"

namespace lazy::ops::cuda {

namespace step {

namespace decoding = kernels::cuda::decoding;

constexpr int kWarps = kParts, kThreads = 32 * kWarps;
// kTile is the number of rows of W in a tile, and kRows is the maximum number of rows of x.
constexpr int kTile = 16, kRows = static_cast<int>(kMaxUngroupedRows);
constexpr int kStride = kRows + 1;  // row stride of the products in shared memory

// Number of columns of y per block. With Mode::pages, a tile of 16 rows of W yields eight RoPE pairs: it contains the
// rows of both elements of each pair. If two tiles were used, the fragments of W would need too many registers.
constexpr int columns_of(Mode mode) { return mode == Mode::pages ? kTile / 2 : kTile; }

template <typename T>
__device__ void store_rounded(void* to, int64_t at, bool wide, float x) {
  if (wide) {
    static_cast<float*>(to)[at] = x;
  } else if constexpr (std::is_same_v<T, __nv_bfloat16>) {
    static_cast<T*>(to)[at] = __float2bfloat16(x);
  } else {
    static_cast<T*>(to)[at] = __float2half(x);
  }
}
// The loads bypass the read-only cache, because the previous kernel may still write the data when this kernel starts.
template <typename T>
__device__ float load_number(const void* from, int64_t at) {
  const uint16_t bits = __ldcg(static_cast<const uint16_t*>(from) + at);
  return kernels::cuda::unpack<T>(bits).x;
}
// STEPS: number of chunks of W that a warp has in flight.
template <typename T, int STEPS, bool NORM, Mode MODE>
__global__ void __launch_bounds__(kThreads, 2) multiply(const __grid_constant__ SkinnyGemm p) {
  constexpr int TILES = MODE == Mode::swiglu ? 2 : 1, kColumns = columns_of(MODE);
  __shared__ float products[kWarps][TILES * kTile][kStride], squares[kWarps][kRows], scales[kRows];
  const int lane = threadIdx.x % 32, g = lane / 4, c = lane % 4, warp = threadIdx.x / 32;
  const int in = static_cast<int>(p.in), out = static_cast<int>(p.out), rows = static_cast<int>(p.rows);
  // This warp processes the chunks with indices warp, warp + 8, warp + 16 and so on.
  const int chunks = (in + kChunk - 1) / kChunk, own = (chunks - warp + kWarps - 1) / kWarps;
  const int first_column = blockIdx.x * kColumns;
  const uint64_t policy = decoding::read_once_policy();

  const auto column_of = [&](int h) { return first_column + g + 8 * h % kColumns; };
  int row_of_w[TILES][2];
#pragma unroll
  for (int t = 0; t < TILES; ++t) {
#pragma unroll
    for (int h = 0; h < 2; ++h) row_of_w[t][h] = row_of<MODE>(p, column_of(h), MODE == Mode::pages ? h : t);
  }
  uint4 w[STEPS][TILES][2];
  const auto load_weights = [&](int step, uint4(&to)[TILES][2]) {
    const int k = (warp + kWarps * step) * kChunk + 8 * c;
#pragma unroll
    for (int t = 0; t < TILES; ++t) {
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        const bool there = step < own && k < in && column_of(h) < out;
        const auto at = static_cast<int64_t>(row_of_w[t][h]) * in + k;
        to[t][h] = there ? decoding::load_once(static_cast<const T*>(p.W) + at, policy) : uint4{};
      }
    }
  };
#pragma unroll
  for (int i = 0; i < STEPS; ++i) load_weights(i, w[i]);
  decoding::let_next_start();
  decoding::wait_for_launcher();

  // Index of the element of y that this thread stores.
  const int r = threadIdx.x % kColumns, row = threadIdx.x / kColumns, column = first_column + r;
  const bool stores = row < rows && column < out;
  float added = 0;
  if constexpr (MODE == Mode::plain) {
    if (stores && p.add) added = load_number<T>(p.add, row * p.out + column);
  }
  [[maybe_unused]] TokenSlot place{};
  [[maybe_unused]] Angles<1> by;
  if constexpr (MODE == Mode::pages) {
    if (stores) place = token_slot(p.pages, row);
  }
  float sum[TILES][4] = {}, square = 0;
  // The loop also loads the RoPE angles, after the first elements of x. It must therefore run at least once.
  constexpr bool kOnceAtLeast = MODE == Mode::pages;
  for (int first = 0; first < own || (kOnceAtLeast && first == 0); first += STEPS) {
    uint4 x[STEPS];  // all loads are issued before the first loaded value is used
#pragma unroll
    for (int i = 0; i < STEPS; ++i) {
      const int k = (warp + kWarps * (first + i)) * kChunk + 8 * c;
      const bool there = first + i < own && k < in && g < rows;
      x[i] = there ? __ldcg(reinterpret_cast<const uint4*>(static_cast<const T*>(p.x) + g * p.x_stride + k)) : uint4{};
    }
    if constexpr (MODE == Mode::pages) {
      if (stores && first == 0) by = angles_of<1>(p.pages, pair_of(p.pages, column), place);
    }
#pragma unroll
    for (int i = 0; i < STEPS; ++i) {
      if constexpr (NORM) {
        const int k = (warp + kWarps * (first + i)) * kChunk + 8 * c;
        const bool there = first + i < own && k < in;
        const float4 none{};
        const float4 low = there ? __ldg(reinterpret_cast<const float4*>(p.norm_weight + k)) : none,
                     high = there ? __ldg(reinterpret_cast<const float4*>(p.norm_weight + k + 4)) : none;
        x[i] = apply_norm_weight<T>(x[i], low, high, square);
      }
#pragma unroll
      for (int t = 0; t < TILES; ++t) {
        const uint4 a = w[i][t][0], b = w[i][t][1];
        kernels::cuda::mma<T>(sum[t], {a.x, b.x, a.y, b.y}, x[i].x, x[i].y);
        kernels::cuda::mma<T>(sum[t], {a.z, b.z, a.w, b.w}, x[i].z, x[i].w);
      }
      load_weights(first + i + STEPS, w[i]);
    }
  }

#pragma unroll
  for (int t = 0; t < TILES; ++t) {
#pragma unroll
    for (int e = 0; e < 4; ++e) products[warp][t * kTile + g + e / 2 * 8][2 * c + e % 2] = sum[t][e];
  }
  if constexpr (NORM) {
    square += __shfl_xor_sync(~0u, square, 1);
    square += __shfl_xor_sync(~0u, square, 2);
    if (c == 0) squares[warp][g] = square;
    __syncthreads();
    if (threadIdx.x < kRows) {
      float all = 0;
      for (int n = 0; n < kWarps; ++n) all += squares[n][threadIdx.x];
      scales[threadIdx.x] = 1 / sqrtf(all / static_cast<float>(in) + p.eps);
    }
  }
  __syncthreads();
  if (!stores) return;
  const float scale = NORM ? scales[row] : 1;
  const auto product = [&](int of_tiles) {
    float all = 0;
    for (int i = 0; i < kWarps; ++i) all += products[i][of_tiles][row];
    return all * scale;
  };
  if constexpr (MODE == Mode::pages) {
    store_pairs<T, 1>(p.pages, row, pair_of(p.pages, column), place, by, {product(r)}, {product(kColumns + r)});
    return;
  }
  float y;
  if constexpr (MODE == Mode::swiglu) {
    y = swiglu<T>(product(r), product(kTile + r));
  } else {
    y = product(r);
    if (p.add) y = rounded<T>(y) + added;
  }
  store_rounded<T>(p.y, row * p.out + column, p.wide, y);
}

template <typename T, bool NORM, Mode MODE>
void launch(const SkinnyGemm& p, cudaStream_t stream) {
  constexpr int kColumns = columns_of(MODE), kSteps = NORM || MODE != Mode::plain ? 4 : 8;
  const auto blocks = static_cast<unsigned>((p.out + kColumns - 1) / kColumns);
  decoding::start<multiply<T, kSteps, NORM, MODE>>(p, blocks, kThreads, 0, true, stream);
}

}  // namespace step

using namespace step;

void skinny_gemm(const SkinnyGemm& p, cudaStream_t stream) {
  if (p.rows == 0 || p.out == 0) return;
  if (p.rows > kMaxUngroupedRows) {
    if (!skinny_gemm_hopper(p, stream)) skinny_gemm_tiles(p, stream);
    return;
  }
  with_kind(p, [&]<typename T, bool NORM, Mode MODE>() { launch<T, NORM, MODE>(p, stream); });
}

}  // namespace lazy::ops::cuda
