// A product of up to eight rows with a piece of a matrix, by tensor cores: rows of W are the rows of mma's A, rows of x
// the columns of B. Fragments are what lanes get from 16-byte loads, because the order of the summed axis is free. A
// block has 16 rows of W, with SWIGLU of each half; a warp has a part of the summed axis, of which a chunk is one step.
#pragma once
#include "attention/cuda/decode_memory.cuh"
#include "ops/cuda/few_rows.cuh"
#include "ops/cuda/step.h"

namespace lazy::ops::cuda::step {

namespace decoding = kernels::cuda::decoding;

constexpr int kWarps = kParts, kThreads = 32 * kWarps;
constexpr int kTile = 16, kRows = static_cast<int>(kRowsByThemselves);  // rows of W in a tile; of x
constexpr int kStride = kRows + 1;                                      // of the products in shared memory

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

template <int TILES>
struct ProductRoom {
  float products[kWarps][TILES * kTile][kStride], squares[kWarps][kRows], scales[kRows];
};

// The rows of W, or columns of y, of a tile: eight from `first` on and eight from first + apart on.
struct Columns {
  int first, apart = kTile / 2;
  __device__ int operator[](int n) const { return first + n % 8 + n / 8 * apart; }
};

// A lane's pieces of a tile of W, 16 bytes each, of which its warp's steps have 2 TILES each: rows g and g + 8 of the
// tile and, with SWIGLU, of the other half of W. A warp has the chunks warp, warp + kWarps, ...
template <typename T, int TILES>
struct TilePieces {
  const T* first;
  int in, out, column, apart, k, own;  // k: the lane's first number of a row; own: steps of the warp

  __device__ TilePieces(const FewRows& p, const Columns& columns)
      : in(static_cast<int>(p.in)),
        out(static_cast<int>(p.out)),
        column(columns[threadIdx.x % 32 / 4]),
        apart(columns.apart),
        k(threadIdx.x / 32 * kChunk + threadIdx.x % 4 * 8),
        own(((in + kChunk - 1) / kChunk - static_cast<int>(threadIdx.x) / 32 + kWarps - 1) / kWarps) {
    first = static_cast<const T*>(p.W) + static_cast<int64_t>(column) * in + k;
  }
  __device__ int number(int step) const { return k + step * kWarps * kChunk; }
  __device__ bool there(int step) const { return step < own && number(step) < in; }
  // Calls use(piece, whether it is there, its address).
  template <typename Use>
  __device__ void each(int step, const Use& use) const {
    const bool any = there(step);
#pragma unroll
    for (int n = 0; n < 2 * TILES; ++n) {
      const auto row = static_cast<int64_t>(n / 2 * out + n % 2 * apart);
      use(n, any && column + n % 2 * apart < out, first + row * in + step * kWarps * kChunk);
    }
  }
};

// The weights of STEPS steps in flight, in registers.
template <typename T, int TILES, int STEPS>
struct HeldWeights {
  static constexpr int kSteps = STEPS, kAtOnce = STEPS;  // in flight; of x
  static constexpr bool kRegistersLeft = false;
  const uint64_t policy = decoding::read_once_policy();
  uint4 w[STEPS][2 * TILES];

  __device__ explicit HeldWeights(char*) {}
  __device__ void ask(const TilePieces<T, TILES>& pieces, int step, int place) {
    pieces.each(step, [&](int n, bool there, const T* from) {
      w[place][n] = there ? decoding::load_once(from, policy) : uint4{};
    });
  }
  __device__ void wait() const {}
  __device__ uint4 take(int, int place, int n) const { return w[place][n]; }
};

// In shared memory, of which every thread has its own.
template <typename T, int TILES, int STEPS, int AT_ONCE>
struct CopiedWeights {
  static constexpr int kSteps = STEPS, kAtOnce = AT_ONCE;
  static constexpr bool kRegistersLeft = true;
  static constexpr int kBytes = STEPS * 2 * TILES * kThreads * 16;
  uint32_t own;

  __device__ explicit CopiedWeights(char* memory) : own(kernels::cuda::shared_address(memory) + threadIdx.x * 16) {}
  __device__ uint32_t at(int step, int n) const { return own + (step % STEPS * 2 * TILES + n) * (kThreads * 16); }
  __device__ void ask(const TilePieces<T, TILES>& pieces, int step, int) {
    if (step < pieces.own) {  // one copy to a place at a time
      pieces.each(step, [&](int n, bool there, const T* from) { kernels::cuda::copy_async(at(step, n), from, there); });
    }
    decoding::commit_copies();
  }
  __device__ void wait() const { decoding::wait_for_copies<STEPS - 1>(); }
  __device__ uint4 take(int step, int, int n) const { return decoding::load_shared(at(step, n)); }
};

// The first steps' weights can be asked for before x is known.
template <typename T, typename Weights, bool NORM, bool SWIGLU>
struct Product {
  static constexpr int TILES = SWIGLU ? 2 : 1, STEPS = Weights::kSteps, AT_ONCE = Weights::kAtOnce;
  using Room = ProductRoom<TILES>;

  Weights weights;

  // memory: for weights that are copied.
  __device__ explicit Product(char* memory = nullptr) : weights(memory) {}

  __device__ void begin(const FewRows& p, const Columns& columns) {
    const TilePieces<T, TILES> pieces(p, columns);
#pragma unroll
    for (int i = 0; i < STEPS; ++i) weights.ask(pieces, i, i);
  }

  static __device__ auto loader(const FewRows& p) {
    return [&p](int row, int k) {
      return __ldcg(reinterpret_cast<const uint4*>(static_cast<const T*>(p.x) + row * p.x_stride + k));
    };
  }

  static __device__ auto storer(const FewRows& p) {
    return [&p](int row, int column, float y) {
      if (row < p.rows && column < p.out) store_rounded<T>(p.y, row * p.out + column, p.wide, y);
    };
  }

  // Once x is known. What others read of `room` is used up.
  __device__ void finish(const FewRows& p, const Columns& columns, Room& room) {
    finish(p, columns, room, loader(p), storer(p));
  }
  // load: (row, k) to eight numbers of x; store: (row, column, y), by four whole warps, of rows and columns that may
  // lie outside too.
  template <typename Load, typename Store>
  __device__ void finish(const FewRows& p, const Columns& columns, Room& room, const Load& load, const Store& store) {
    const TilePieces<T, TILES> pieces(p, columns);
    const int lane = threadIdx.x % 32, g = lane / 4, c = lane % 4, warp = threadIdx.x / 32;
    const int in = pieces.in, rows = static_cast<int>(p.rows), own = pieces.own;
    float sum[TILES][4] = {}, square = 0;
    for (int first = 0; first < own; first += AT_ONCE) {
      // All loads before the first use of one.
      uint4 x[AT_ONCE], more[NORM ? AT_ONCE : 1];
      float4 low[NORM ? AT_ONCE : 1], high[NORM ? AT_ONCE : 1];
      const auto load_norm = [&](int i) {
        const int k = pieces.number(first + i);
        const bool there = pieces.there(first + i);
        low[i] = there ? __ldg(reinterpret_cast<const float4*>(p.norm_weight + k)) : float4{};
        high[i] = there ? __ldg(reinterpret_cast<const float4*>(p.norm_weight + k + 4)) : float4{};
      };
#pragma unroll
      for (int i = 0; i < AT_ONCE; ++i) {
        const int k = pieces.number(first + i);
        const bool there = pieces.there(first + i) && g < rows;
        x[i] = there ? load(g, k) : uint4{};
        if constexpr (NORM) {
          const auto* const residual = static_cast<const T*>(p.residual) + g * in + k;
          more[i] = there && p.residual ? __ldcg(reinterpret_cast<const uint4*>(residual)) : uint4{};
          if constexpr (Weights::kRegistersLeft) load_norm(i);
        }
      }
#pragma unroll
      for (int i = 0; i < (NORM ? AT_ONCE : 0); ++i) {
        if (p.residual) {
          x[i] = add<T>(x[i], more[i]);
          if (columns.first == 0 && pieces.there(first + i) && g < rows) {
            *reinterpret_cast<uint4*>(static_cast<T*>(p.sum) + g * in + pieces.number(first + i)) = x[i];
          }
        }
        if constexpr (Weights::kRegistersLeft) x[i] = weigh<T>(x[i], low[i], high[i], square);
      }
#pragma unroll
      for (int i = 0; i < AT_ONCE; ++i) {
        const int step = first + i;
        if (step >= own) break;
        if constexpr (NORM && !Weights::kRegistersLeft) {
          load_norm(i);
          x[i] = weigh<T>(x[i], low[i], high[i], square);
        }
        weights.wait();
#pragma unroll
        for (int t = 0; t < TILES; ++t) {
          const uint4 a = weights.take(step, i, 2 * t), b = weights.take(step, i, 2 * t + 1);
          kernels::cuda::mma<T>(sum[t], {a.x, b.x, a.y, b.y}, x[i].x, x[i].y);
          kernels::cuda::mma<T>(sum[t], {a.z, b.z, a.w, b.w}, x[i].z, x[i].w);
        }
        weights.ask(pieces, step + STEPS, i);
      }
    }

#pragma unroll
    for (int t = 0; t < TILES; ++t) {
#pragma unroll
      for (int e = 0; e < 4; ++e) room.products[warp][t * kTile + g + e / 2 * 8][2 * c + e % 2] = sum[t][e];
    }
    if constexpr (NORM) {
      square += __shfl_xor_sync(~0u, square, 1);
      square += __shfl_xor_sync(~0u, square, 2);
      if (c == 0) room.squares[warp][g] = square;
      __syncthreads();
      if (threadIdx.x < kRows) {
        float all = 0;
        for (int n = 0; n < kWarps; ++n) all += room.squares[n][threadIdx.x];
        room.scales[threadIdx.x] = 1 / sqrtf(all / static_cast<float>(in) + p.eps);
      }
    }
    __syncthreads();
    if (threadIdx.x >= kTile * kRows) return;
    const int r = threadIdx.x % kTile, row = threadIdx.x / kTile;
    const float scale = NORM ? room.scales[row] : 1;
    const auto product = [&](int of_tiles) {
      float all = 0;
      for (int i = 0; i < kWarps; ++i) all += room.products[i][of_tiles][row];
      return all * scale;
    };
    if constexpr (SWIGLU) {
      store(row, columns[r], swiglu<T>(product(r), product(kTile + r)));
    } else {
      store(row, columns[r], product(r));
    }
  }
};

// Chunks in flight that fit in the registers.
template <typename T, bool NORM, bool SWIGLU>
using HeldProduct = Product<T, HeldWeights<T, SWIGLU ? 2 : 1, NORM || SWIGLU ? 4 : 8>, NORM, SWIGLU>;

}  // namespace lazy::ops::cuda::step
