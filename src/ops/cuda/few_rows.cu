// Products of few rows with a matrix that is read once, by tensor cores: rows of W are the rows of mma's A, rows of x
// the columns of B. As in attention/cuda/decode_products.cuh, fragments are what lanes get from 16-byte loads, because
// the order of the summed axis is free. A block has TILES * 16 rows of W; its warps share the summed axis, of which a
// chunk of 32 is one step of a warp. The first steps' weights are asked for before the kernel in front has ended.
#include <algorithm>

#include "attention/cuda/decode_memory.cuh"
#include "attention/cuda/decode_params.h"
#include "ops/cuda/few_rows.cuh"
#include "ops/cuda/step.h"

namespace lazy::ops::cuda {

namespace step {

namespace decoding = kernels::cuda::decoding;

constexpr int kWarps = 8, kThreads = 32 * kWarps;
constexpr int kChunk = 32;  // of the summed axis

constexpr int stride(int groups) { return 8 * groups + 1; }  // of the products in shared memory
constexpr int shared_bytes(int tiles, int groups) {
  return (kWarps * tiles * 16 * stride(groups) + (kWarps + 1) * 8 * groups) * 4;
}

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
// GROUPS: of 8 rows of x, a block. STEPS: chunks of a warp in flight. Grid: (groups of rows of x, rows of W).
template <typename T, int TILES, int GROUPS, int STEPS, bool NORM, bool SWIGLU>
__global__ void __launch_bounds__(kThreads, TILES* GROUPS <= 8 ? 2 : 1) multiply(const __grid_constant__ FewRows p) {
  extern __shared__ __align__(16) char memory[];
  auto* const products = reinterpret_cast<float*>(memory);                 // (warps, TILES * 16, stride)
  float* const squares = products + kWarps * TILES * 16 * stride(GROUPS);  // (warps + 1, 8 GROUPS)
  const int lane = threadIdx.x % 32, g = lane / 4, c = lane % 4, warp = threadIdx.x / 32;
  const int in = static_cast<int>(p.in), out = static_cast<int>(p.out), rows = static_cast<int>(p.rows);
  const int first_row = blockIdx.x * 8 * GROUPS;
  const int chunks = (in + kChunk - 1) / kChunk, own = (chunks - warp + kWarps - 1) / kWarps;  // warp, warp + 8, ...
  const uint64_t policy = decoding::read_once_policy();

  // Row of W that is row 0 of a tile; with SWIGLU tiles of both halves take turns.
  const auto tile_row = [&](int t) {
    return SWIGLU ? (blockIdx.y * (TILES / 2) + t / 2) * 16 : (blockIdx.y * TILES + t) * 16;
  };
  uint4 w[STEPS][TILES][2];
  const auto load_weights = [&](int step, uint4(&to)[TILES][2]) {
    const int k = (warp + kWarps * step) * kChunk + 8 * c;
#pragma unroll
    for (int t = 0; t < TILES; ++t) {
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        const int row = tile_row(t) + g + 8 * h;
        const bool there = step < own && k < in && row < out;
        const auto at = static_cast<int64_t>(row + (SWIGLU && t % 2 ? out : 0)) * in + k;
        to[t][h] = there ? decoding::load_once(static_cast<const T*>(p.W) + at, policy) : uint4{};
      }
    }
  };
#pragma unroll
  for (int i = 0; i < STEPS; ++i) load_weights(i, w[i]);
  decoding::let_next_start();
  decoding::wait_for_launcher();

  float sum[TILES][GROUPS][4] = {};
  float square[GROUPS] = {};
  for (int first = 0; first < own; first += STEPS) {
    uint4 x[STEPS][GROUPS];
#pragma unroll
    for (int i = 0; i < STEPS; ++i) {
      const int k = (warp + kWarps * (first + i)) * kChunk + 8 * c;
#pragma unroll
      for (int n = 0; n < GROUPS; ++n) {
        const int row = first_row + 8 * n + g;
        const bool there = first + i < own && k < in && row < rows;
        x[i][n] =
            there ? __ldcg(reinterpret_cast<const uint4*>(static_cast<const T*>(p.x) + row * p.x_stride + k)) : uint4{};
        if constexpr (NORM) {
          if (there && p.residual) {
            const int64_t at = row * p.in + k;
            const uint4 r = __ldcg(reinterpret_cast<const uint4*>(static_cast<const T*>(p.residual) + at));
            x[i][n] = add<T>(x[i][n], r);
            if (blockIdx.y == 0) *reinterpret_cast<uint4*>(static_cast<T*>(p.sum) + at) = x[i][n];
          }
        }
      }
    }
#pragma unroll
    for (int i = 0; i < STEPS; ++i) {
      if constexpr (NORM) {
        const int k = (warp + kWarps * (first + i)) * kChunk + 8 * c;
        const bool there = first + i < own && k < in;
        const float4 none{};
        const float4 low = there ? __ldg(reinterpret_cast<const float4*>(p.norm_weight + k)) : none,
                     high = there ? __ldg(reinterpret_cast<const float4*>(p.norm_weight + k + 4)) : none;
#pragma unroll
        for (int n = 0; n < GROUPS; ++n) x[i][n] = weigh<T>(x[i][n], low, high, square[n]);
      }
#pragma unroll
      for (int t = 0; t < TILES; ++t) {
        const uint4 a = w[i][t][0], b = w[i][t][1];
#pragma unroll
        for (int n = 0; n < GROUPS; ++n) {
          kernels::cuda::mma<T>(sum[t][n], {a.x, b.x, a.y, b.y}, x[i][n].x, x[i][n].y);
          kernels::cuda::mma<T>(sum[t][n], {a.z, b.z, a.w, b.w}, x[i][n].z, x[i][n].w);
        }
      }
      load_weights(first + i + STEPS, w[i]);
    }
  }

#pragma unroll
  for (int t = 0; t < TILES; ++t) {
#pragma unroll
    for (int n = 0; n < GROUPS; ++n) {
#pragma unroll
      for (int e = 0; e < 4; ++e) {  // row g (e < 2) or g + 8 of the tile, row 2 c or 2 c + 1 of x's group
        products[(warp * TILES * 16 + t * 16 + g + e / 2 * 8) * stride(GROUPS) + 8 * n + 2 * c + e % 2] = sum[t][n][e];
      }
    }
  }
  if constexpr (NORM) {
#pragma unroll
    for (int n = 0; n < GROUPS; ++n) {
      square[n] += __shfl_xor_sync(~0u, square[n], 1);
      square[n] += __shfl_xor_sync(~0u, square[n], 2);
      if (c == 0) squares[warp * 8 * GROUPS + 8 * n + g] = square[n];
    }
    __syncthreads();
    if (threadIdx.x < 8 * GROUPS) {
      float all = 0;
      for (int n = 0; n < kWarps; ++n) all += squares[n * 8 * GROUPS + threadIdx.x];
      squares[kWarps * 8 * GROUPS + threadIdx.x] = 1 / sqrtf(all / static_cast<float>(in) + p.eps);
    }
  }
  __syncthreads();
  constexpr int kResults = SWIGLU ? TILES / 2 : TILES;  // tiles of y
  for (int n = threadIdx.x; n < kResults * 16 * 8 * GROUPS; n += kThreads) {
    const int r = n % (16 * kResults), m = n / (16 * kResults), row = first_row + m;
    const int column = tile_row(SWIGLU ? 2 * (r / 16) : r / 16) + r % 16;
    if (row >= rows || column >= out) continue;
    const float scale = NORM ? squares[kWarps * 8 * GROUPS + m] : 1;
    const auto product = [&](int of_block) {
      float all = 0;
      for (int i = 0; i < kWarps; ++i) all += products[(i * TILES * 16 + of_block) * stride(GROUPS) + m];
      return all * scale;
    };
    float y;
    if constexpr (SWIGLU) {
      y = swiglu<T>(product(r / 16 * 32 + r % 16), product(r / 16 * 32 + 16 + r % 16));
    } else {
      y = product(r);
    }
    store_rounded<T>(p.y, row * p.out + column, p.wide, y);
  }
}

template <typename T, int TILES, int GROUPS, int STEPS, bool NORM, bool SWIGLU>
void launch(const FewRows& p, cudaStream_t stream) {
  constexpr int kRows = 16 * (SWIGLU ? TILES / 2 : TILES);  // columns of y, a block
  const auto blocks = [](int64_t x, int64_t by) { return static_cast<unsigned>((x + by - 1) / by); };
  const dim3 grid(blocks(p.rows, 8 * GROUPS), blocks(p.out, kRows));
  decoding::start<multiply<T, TILES, GROUPS, STEPS, NORM, SWIGLU>>(p, grid, kThreads, shared_bytes(TILES, GROUPS), true,
                                                                   stream);
}

template <typename T, bool NORM, bool SWIGLU>
void launch(const FewRows& p, cudaStream_t stream) {
  launch<T, SWIGLU ? 2 : 1, 1, NORM || SWIGLU ? 4 : 8, NORM, SWIGLU>(p, stream);
}

}  // namespace step

using namespace step;

void few_rows(const FewRows& p, cudaStream_t stream) {
  if (p.rows == 0 || p.out == 0) return;
  if (p.rows > kRowsByThemselves) return few_rows_tiles(p, stream);
  const auto of_type = [&](auto type) {
    using T = decltype(type);
    if (p.swiglu) return p.norm_weight ? launch<T, true, true>(p, stream) : launch<T, false, true>(p, stream);
    p.norm_weight ? launch<T, true, false>(p, stream) : launch<T, false, false>(p, stream);
  };
  p.type == DType::bf16 ? of_type(__nv_bfloat16{}) : of_type(__half{});
}

}  // namespace lazy::ops::cuda
