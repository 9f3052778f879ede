// Fast weights of two layers with momentum whose state is spread over a cluster of blocks. A block has 64 of the hidden
// columns: of the first layer's columns and the last layer's rows. They stay in its shared memory from chunk to chunk.
// What is summed over hidden columns is summed over the blocks, in the order of their ranks, for a quarter of the
// chunk's tokens by each block.
#pragma once
#include "ops/cuda/fast_weights.cuh"

namespace lazy::ops::cuda::learning {

// The block's dynamic shared memory.
__device__ inline float* shared_memory() {
  extern __shared__ __align__(128) float memory[];
  return own_memory(memory);
}

namespace spread {

constexpr int kBlocks = 4, kHidden = kBlocks * kDim;
constexpr int kT = 64, kWarps = 16, kThreads = 32 * kWarps;
constexpr int kOwned = kT / kBlocks;  // the tokens whose sums over the blocks a block computes
static_assert(kOwned == kWarps);      // a warp has one of them

constexpr int kRow = kDim + 8, kTile = kDim * kRow;  // a quarter of a warp has pairs of four rows in different banks
constexpr int kMostBytes = 227 << 10;                // of shared memory, that a kernel takes

using Tile = Share<kWarps, kT, kDim>;

// Tiles of 16-bit numbers: fp16 rounds like TF32, a load of four 8 x 8 matrices is what a lane needs of a factor, and
// products are twice as fast. What may be far below one is scaled by a power of two.
using Half = __half;
constexpr int kHalfRow = kDim + 8, kHalfTile = kDim * kHalfRow;  // eight rows at one column lie in different banks
constexpr float kStepScale = 256;                                // of steps

__device__ inline void set_halves(Half* at, float x, float y) {
  *reinterpret_cast<uint32_t*>(at) = tensor_core::pack<Half>(x, y);
}
__device__ inline void set_halves(Half* at, const float4& x) {
  *reinterpret_cast<uint2*>(at) = make_uint2(tensor_core::pack<Half>(x.x, x.y), tensor_core::pack<Half>(x.z, x.w));
}

__device__ inline float2 halves(const Half* at) {
  return tensor_core::unpack<Half>(*reinterpret_cast<const uint32_t*>(at));
}

// What a lane holds of 16 inner indices of a factor: of the warp's 16 rows, or of its columns.
struct Fragment {
  uint32_t x[4];
};
// A factor of products that are Tiles. INNER_ROWS: the inner index is that of the tile's rows. It keeps a place in
// shared memory as a number: with a pointer in its stead nvcc 13.0 reads local memory.
template <bool LEFT, bool INNER_ROWS>
struct Factor {
  uint32_t at;
  __device__ explicit Factor(const Half* tile) {
    static_assert(Tile::kColumns == 16);
    constexpr bool kPairs = LEFT == INNER_ROWS;  // of matrices that lie beside each other
    const int outer = LEFT ? Tile::row() : Tile::group() * Tile::kColumns;
    const int row = kPairs ? lane() / 16 * 8 + lane() % 8 : lane() % 16,
              column = (kPairs ? lane() / 8 % 2 : lane() / 16) * 8;
    at = tensor_core::shared_address(tile + (INNER_ROWS ? row : outer + row) * kHalfRow +
                                     (INNER_ROWS ? outer + column : column));
  }
  __device__ Fragment operator()(int step) const {
    Fragment f;
    if constexpr (INNER_ROWS) {
      tensor_core::load_matrices_transposed(f.x, at + static_cast<uint32_t>(step * 16 * kHalfRow * sizeof(Half)));
    } else {
      tensor_core::load_matrices(f.x, at + static_cast<uint32_t>(step * 16 * sizeof(Half)));
    }
    return f;
  }
};
using Left = Factor<true, false>;
using LeftAcross = Factor<true, true>;
using Right = Factor<false, true>;
using RightAcross = Factor<false, false>;
// Of a left factor, inner indices by numbers of their own.
__device__ inline Fragment scaled(const Fragment& f, const Half* by, int step) {
  const auto* const at = reinterpret_cast<const uint32_t*>(by + 16 * step + lane() % 4 * 2);
  const uint32_t a = at[0], b = at[4];
  return {
      {multiply_halves(f.x[0], a), multiply_halves(f.x[1], a), multiply_halves(f.x[2], b), multiply_halves(f.x[3], b)}};
}
__device__ inline void add_product(Tile& to, const Fragment& left, const Fragment& right) {
#pragma unroll
  for (int n = 0; n < Tile::kTiles; ++n) tensor_core::mma<Half>(to.c[n], left.x, right.x[2 * n], right.x[2 * n + 1]);
}
// function(step) for the inner indices, 16 each.
template <int UNROLLED, typename Function>
__device__ void each_step(const Function& function) {
#pragma unroll UNROLLED
  for (int step = 0; step < kDim / 16; ++step) function(step);
}
// to += left right, and with one left factor for two.
template <int UNROLLED, typename L, typename R>
__device__ void multiply(Tile& to, const L& left, const R& right) {
  each_step<UNROLLED>([&](int step) { add_product(to, left(step), right(step)); });
}
template <int UNROLLED, typename L, typename R>
__device__ void multiply(Tile& a, Tile& b, const L& left, const R& by_a, const R& by_b) {
  each_step<UNROLLED>([&](int step) {
    const Fragment x = left(step);
    add_product(a, x, by_a(step));
    add_product(b, x, by_b(step));
  });
}
// a += left right with the inner indices scaled by one row of numbers, b with those by another.
template <int UNROLLED>
__device__ void multiply_scaled(Tile& a, Tile& b, const LeftAcross& left, const Right& right, const Half* of_a,
                                const Half* of_b) {
  each_step<UNROLLED>([&](int step) {
    const Fragment x = left(step), y = right(step);
    add_product(a, scaled(x, of_a, step), y);
    add_product(b, scaled(x, of_b, step), y);
  });
}
__device__ inline void write_halves(Tile& share, Half* to) {
  share.each([&](int i, int j, float& a, float& b) { set_halves(to + i * kHalfRow + j, a, b); });
}

// The normal distribution at z, of which GELU and its derivatives are made: erf to 2e-7 by Abramowitz and Stegun's
// 7.1.26, whose exponential is the density's.
struct Normal {
  float z, cumulative, density;
  __device__ explicit Normal(float x) : z(x) {
    const float bell = tensor_core::exp2_fast(-0.7213475204444817f * z * z);  // e^(-z^2 / 2)
    const float t = reciprocal(1 + 0.23164189f * fabsf(z));
    const float tail =
        t * (0.127414796f + t * (-0.142248368f + t * (0.7107068705f + t * (-0.7265760135f + t * 0.5307027145f)))) *
        bell;
    cumulative = z < 0 ? tail : 1 - tail;
    density = 0.3989422804014327f * bell;
  }
  __device__ float value() const { return z * cumulative; }
  __device__ float slope() const { return cumulative + z * density; }
  __device__ float bend() const { return (2 - z * z) * density; }
};
// The activation's slopes of a share, in half the registers.
struct Slopes {
  uint32_t pairs[Tile::kTiles][2];
  __device__ float operator()(int n, int e) const {
    const float2 both = tensor_core::unpack<Half>(pairs[n][e / 2]);
    return e % 2 == 0 ? both.x : both.y;
  }
};
// Writes what a share is activated to.
__device__ inline Slopes activate(const Tile& share, Half* to) {
  Slopes slopes;
#pragma unroll
  for (int n = 0; n < Tile::kTiles; ++n) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const Normal a(share.c[n][2 * half]), b(share.c[n][2 * half + 1]);
      set_halves(to + (Tile::row() + 8 * half + lane() / 4) * kHalfRow + Tile::group() * Tile::kColumns + 8 * n +
                     lane() % 4 * 2,
                 a.value(), b.value());
      slopes.pairs[n][half] = tensor_core::pack<Half>(a.slope(), b.slope());
    }
  }
  return slopes;
}

// function(row, column, x, y) for every two neighbours of a tile, x and y numbers of two shares.
template <typename Function>
__device__ void each_of_two(Tile& a, Tile& b, const Function& function) {
#pragma unroll
  for (int n = 0; n < Tile::kTiles; ++n) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      function(Tile::row() + 8 * half + lane() / 4, Tile::group() * Tile::kColumns + 8 * n + lane() % 4 * 2,
               make_float2(a.c[n][2 * half], a.c[n][2 * half + 1]),
               make_float2(b.c[n][2 * half], b.c[n][2 * half + 1]));
    }
  }
}

// The sum over the cluster's blocks of what lies at `own`.
__device__ inline float2 sum_of_blocks(float* own) {
  float2 sum = pair(of_block(own, 0));
#pragma unroll
  for (int rank = 1; rank < kBlocks; ++rank) {
    const float2 x = pair(of_block(own, rank));
    sum.x += x.x, sum.y += x.y;
  }
  return sum;
}

// Queues the copy of a tile of 64 rows.
__device__ inline void fetch_tile(float* tile, const float* from, int step) {
  fetch<kDim, kThreads, kDim, kRow>(tile, from, step);
}
// Brings the block's part of the 64 x 64 numbers that each of `all` has for a chunk to the L2 cache.
template <typename... Tensors>
__device__ void prefetch_part(int64_t index, int rank, Tensors*... all) {
  constexpr int kLine = 32;
  static_assert(kT * kDim == kBlocks * kLine * 32 && sizeof...(all) <= kWarps);
  int which = 0;
  ((warp() == which++ ? prefetch(all + index * kT * kDim + (rank * 32 + lane()) * kLine) : void()), ...);
}
// The thread's part of 64 x 64 numbers: kFetched times four of them.
constexpr int kFetched = kDim * kDim / 4 / kThreads;
// function(row, column) of these.
template <typename Function>
__device__ void each_fetched(const Function& function) {
#pragma unroll
  for (int m = 0; m < kFetched; ++m) {
    const int place = thread() + m * kThreads;
    function(place / (kDim / 4), place % (kDim / 4) * 4);
  }
}
__device__ inline float4& four(float* at) { return *reinterpret_cast<float4*>(at); }
// From contiguous numbers in global memory to registers, and from there to a tile.
__device__ inline void read_part(float4 (&to)[kFetched], const float* from) {
#pragma unroll
  for (int m = 0; m < kFetched; ++m) {
    to[m] = *reinterpret_cast<const float4*>(from + 4 * (thread() + m * kThreads));
  }
}
__device__ inline void set_part(Half* tile, const float4 (&from)[kFetched]) {
#pragma unroll
  for (int m = 0; m < kFetched; ++m) {
    const int place = thread() + m * kThreads;
    set_halves(tile + place / (kDim / 4) * kHalfRow + place % (kDim / 4) * 4, from[m]);
  }
}
__device__ inline float dot_four(const float4& a, const float4& b) {
  return a.x * b.x + a.y * b.y + a.z * b.z + a.w * b.w;
}
__device__ inline float warp_max(float x) {
#pragma unroll
  for (int step = 16; step > 0; step /= 2) x = fmaxf(x, __shfl_xor_sync(~0u, x, step));
  return x;
}

// Whether both passes are by clusters, on the current GPU and with one of their kernels as compiled for it.
template <typename Kernel>
bool serves(const FastWeightsProblem& p, Kernel kernel) {
  if (!p.momentum || p.tanh || p.T != kT || p.H != kHidden || kMostBytes > most_shared_memory("fast_weights"))
    return false;
  cudaFuncAttributes attributes;
  check(cudaFuncGetAttributes(&attributes, kernel), "fast_weights");
  return attributes.ptxVersion >= 90;
}

}  // namespace spread
}  // namespace lazy::ops::cuda::learning
