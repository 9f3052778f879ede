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

// From row to row: 8 more than a multiple of 32 where pairs are read or the tile is a right factor.
constexpr int kRow = kDim + 8, kTile = kDim * kRow;
constexpr int kMostBytes = 227 << 10;  // of shared memory, that a kernel takes

using Tile = Share<kWarps, kT, kDim>;

__device__ inline int place(const float* in_shared_memory) {
  return static_cast<int>(in_shared_memory - shared_memory());
}

// Factors of a product that is a Tile. Each keeps the place of the lane's first number, from which all others have
// fixed distances (a pointer in its stead makes nvcc 13.0 read local memory). A left factor gives what a lane holds of
// eight inner indices from 8 step on, a right one of the nth eight of the warp's columns too. Left factors lie in
// shared memory rounded to TF32, as right ones do unless they are to ROUND. The inner index is that of a tile's columns
// (LeftRows, RightColumns) or rows; in pairs, where a load gives two, for both factors of a product.
template <int STEP>
struct LeftRows {
  int at;
  __device__ explicit LeftRows(const float* tile) : at(place(tile) + (Tile::row() + lane() / 4) * STEP + lane() % 4) {}
  __device__ void operator()(int step, uint32_t (&x)[4]) const {
    const float* const from = shared_memory() + at + 8 * step;
    x[0] = bits(from[0]), x[1] = bits(from[8 * STEP]), x[2] = bits(from[4]), x[3] = bits(from[8 * STEP + 4]);
  }
};
template <int STEP>
struct LeftColumns {
  int at;
  __device__ explicit LeftColumns(const float* tile) : at(place(tile) + lane() % 4 * STEP + Tile::row() + lane() / 4) {}
  __device__ void operator()(int step, uint32_t (&x)[4]) const {
    const float* const from = shared_memory() + at + 8 * step * STEP;
    x[0] = bits(from[0]), x[1] = bits(from[8]), x[2] = bits(from[4 * STEP]), x[3] = bits(from[4 * STEP + 8]);
  }
};
// The rows of the tile, which are the inner indices, have factors.
template <int STEP>
struct ScaledLeftColumns {
  int at, factors;
  __device__ ScaledLeftColumns(const float* tile, const float* factors)
      : at(LeftColumns<STEP>(tile).at), factors(place(factors) + lane() % 4) {}
  __device__ void operator()(int step, uint32_t (&x)[4]) const {
    const float* const from = shared_memory() + at + 8 * step * STEP;
    const float a = shared_memory()[factors + 8 * step], b = shared_memory()[factors + 8 * step + 4];
    x[0] = tf32(a * from[0]), x[1] = tf32(a * from[8]), x[2] = tf32(b * from[4 * STEP]);
    x[3] = tf32(b * from[4 * STEP + 8]);
  }
};
template <int STEP>
struct LeftPairs {
  int at;
  __device__ explicit LeftPairs(const float* tile)
      : at(place(tile) + (Tile::row() + lane() / 4) * STEP + lane() % 4 * 2) {}
  __device__ void operator()(int step, uint32_t (&x)[4]) const {
    const uint2 above = bits(pair(shared_memory() + at + 8 * step)),
                below = bits(pair(shared_memory() + at + 8 * step + 8 * STEP));
    x[0] = above.x, x[1] = below.x, x[2] = above.y, x[3] = below.y;
  }
};
template <bool ROUND>
__device__ uint2 right_bits(float x, float y) {
  return ROUND ? make_uint2(tf32(x), tf32(y)) : make_uint2(bits(x), bits(y));
}
template <int STEP, bool ROUND = false>
struct RightRows {
  int at;
  __device__ explicit RightRows(const float* tile)
      : at(place(tile) + lane() % 4 * STEP + Tile::group() * Tile::kColumns + lane() / 4) {}
  __device__ uint2 operator()(int step, int n) const {
    const float* const from = shared_memory() + at + 8 * step * STEP + 8 * n;
    return right_bits<ROUND>(from[0], from[4 * STEP]);
  }
};
template <int STEP>
struct RightColumns {
  int at;
  __device__ explicit RightColumns(const float* tile)
      : at(place(tile) + (Tile::group() * Tile::kColumns + lane() / 4) * STEP + lane() % 4) {}
  __device__ uint2 operator()(int step, int n) const {
    const float* const from = shared_memory() + at + 8 * n * STEP + 8 * step;
    return right_bits<false>(from[0], from[4]);
  }
};
template <int STEP, bool ROUND = false>
struct RightPairs {
  int at;
  __device__ explicit RightPairs(const float* tile)
      : at(place(tile) + (Tile::group() * Tile::kColumns + lane() / 4) * STEP + lane() % 4 * 2) {}
  __device__ uint2 operator()(int step, int n) const {
    const float2 y = pair(shared_memory() + at + 8 * n * STEP + 8 * step);
    return right_bits<ROUND>(y.x, y.y);
  }
};

// to += left right. Several products over the same inner indices are one loop: what two of them read is read once.
template <typename L, typename R>
struct Term {
  Tile& to;
  L left;
  R right;

  __device__ void add(int step) const {
    uint32_t x[4];
    left(step, x);
#pragma unroll
    for (int n = 0; n < Tile::kTiles; ++n) {
      const uint2 y = right(step, n);
      mma_tf32(to.c[n], x, y.x, y.y);
    }
  }
};
template <typename L, typename R>
__device__ Term<L, R> term(Tile& to, const L& left, const R& right) {
  return {to, left, right};
}
template <typename... Terms>
__device__ void products(const Terms&... terms) {
#pragma unroll 4
  for (int step = 0; step < kDim / 8; ++step) (terms.add(step), ...);
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
template <int STEP>
__device__ void fetch_tile(float* tile, const float* from, int step) {
  fetch<kDim, kThreads, kDim, STEP>(tile, from, step);
}
// Brings the block's part of the 64 x 64 numbers that each of `all` has for a chunk to the L2 cache.
template <typename... Tensors>
__device__ void prefetch_part(int64_t index, int rank, Tensors*... all) {
  constexpr int kLine = 32;
  static_assert(kT * kDim == kBlocks * kLine * 32 && sizeof...(all) <= kWarps);
  int which = 0;
  ((warp() == which++ ? prefetch(all + index * kT * kDim + (rank * 32 + lane()) * kLine) : void()), ...);
}
// function(place in a tile) for all that this thread copies of one, four numbers each.
template <int STEP, typename Function>
__device__ void each_fetched(const Function& function) {
#pragma unroll
  for (int n = thread(); n < kDim * kDim / 4; n += kThreads) function(n / (kDim / 4) * STEP + n % (kDim / 4) * 4);
}
__device__ inline float4& four(float* at) { return *reinterpret_cast<float4*>(at); }
__device__ inline void round_four(float4& four) {
  for (float* x : {&four.x, &four.y, &four.z, &four.w}) *x = __uint_as_float(tf32(*x));
}
__device__ inline float dot_four(const float4& a, const float4& b) {
  return a.x * b.x + a.y * b.y + a.z * b.z + a.w * b.w;
}
// Waits for what was queued. Before the others see it, the thread rounds what it has copied of some tiles, and calls
// function().
template <int STEP, typename Function, typename... Tiles>
__device__ void arrive_rounded(const Function& function, Tiles*... tiles) {
  tensor_core::copies_commit();
  tensor_core::copies_wait<0>();
  each_fetched<STEP>([&](int place) { (round_four(four(tiles + place)), ...); });
  function();
  __syncthreads();
}

// Whether both passes are by clusters, on the current GPU and with one of their kernels as compiled for it.
template <typename Kernel>
bool serves(const FastWeightsProblem& p, Kernel kernel) {
  if (!p.momentum || p.T != kT || p.H != kHidden || kMostBytes > most_shared_memory("fast_weights")) return false;
  cudaFuncAttributes attributes;
  check(cudaFuncGetAttributes(&attributes, kernel), "fast_weights");
  return attributes.ptxVersion >= 90;
}

}  // namespace spread
}  // namespace lazy::ops::cuda::learning
