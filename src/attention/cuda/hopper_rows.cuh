// What the Hopper kernels share: a warpgroup's 64 rows, their scores, products of tiles.
#pragma once
#include "attention/cuda/hopper.cuh"
#include "attention/cuda/portable.cuh"

namespace lazy::kernels::cuda::hopper {

using portable::all_visible;
using portable::kLn2;
using portable::kLog2e;

// Keys of a tile from the last to the first (first sweep), or the other way round.
struct Span {
  int begin, tiles;
  template <int N>
  __device__ int key(int n, bool back) const { return begin + (back ? tiles - 1 - n : n) * N; }
};

// Distance biases in units of log2: entry pad + d for distance d, zeros for `pad` entries on both sides, so that no tile
// that touches the window needs a test.
__device__ inline void fill_table(const Params& p, int head, float* table, int pad, int thread, int threads) {
  if (p.bias_window == 0) return;
  for (int n = thread; n < p.bias_window + 2 * pad; n += threads) {
    const int d = n - pad;
    table[n] = d >= 0 && d < p.bias_window ? p.distance_bias[head * p.bias_window + d] * kLog2e : 0;
  }
}

// c (64 x 2 A) = X Y^T over D: tiles (tile_start) of 64-column halves of X_ROWS and Y_ROWS rows. Committed as one group.
template <typename T, int D, int X_ROWS, int Y_ROWS, int A>
__device__ void issue_product(float (&c)[A], uint32_t x, uint32_t y) {
  wgmma_fence();
#pragma unroll
  for (int d = 0; d < D / 16; ++d) {
    const int half = d / 4, inside = d % 4 * 32;
    wgmma<T, 0, 0>(c, descriptor(x + units(half * X_ROWS * 128 + inside)),
                   descriptor(y + units(half * Y_ROWS * 128 + inside)), d > 0);
  }
  wgmma_commit();
}

// The 64 rows from `first` on. A thread's accumulators 4 n + 2 h + e belong to row(h) and column 8 n + 2 (lane % 4) + e.
struct RowGroup {
  const Params& p;
  const Tile& t;
  const float* table;                       // fill_table's entry of distance 0, or null
  int first, lane, leader;
  Keys keys[2];
  Keys common;                              // what all rows see
  float factor;

  __device__ RowGroup(const Params& p, const Tile& t) : p(p), t(t) {}
  __device__ void start(int first_row, const float* biases) {
    first = first_row;
    table = biases;
    lane = threadIdx.x % 32;
    leader = threadIdx.x % 128 == 0;
    factor = p.scale * kLog2e;
#pragma unroll
    for (int h = 0; h < 2; ++h) keys[h] = row(h) < t.q_length ? visible(p, t, row(h)) : Keys{0, 0};
    common = {visible(p, t, min(first + 64, t.q_length) - 1).begin, visible(p, t, first).end};
  }
  __device__ int row(int h) const { return first + threadIdx.x / 32 % 4 * 16 + lane / 4 + 8 * h; }

  // As RowSweep::scores of the portable kernels: s * the returned factor is in units of log2.
  template <int N>
  __device__ float finish(float (&s)[N / 2], int key) {
    const int nearest = first + t.shift() - (key + N - 1), farthest = first + 63 + t.shift() - key;
    const bool add_here = table && nearest < p.bias_window && farthest >= 0;
    const bool full = common.begin <= key && common.end >= key + N;
    if (!add_here && full) return factor;
    if (add_here) {
      // Row r + 8 at column block n meets the distances of row r at block n - 1.
      const float* at = table + row(0) + t.shift() - key - 2 * (lane % 4);
      float upper[2] = {at[8], at[7]};
#pragma unroll
      for (int n = 0; n < N / 8; ++n) {
        const float lower[2] = {at[-8 * n], at[-8 * n - 1]};
#pragma unroll
        for (int e = 0; e < 2; ++e) {
          s[4 * n + e] = fmaf(s[4 * n + e], factor, lower[e]);
          s[4 * n + 2 + e] = fmaf(s[4 * n + 2 + e], factor, upper[e]);
          upper[e] = lower[e];
        }
      }
    }
    if (!full) {
      const int column = key + 2 * (lane % 4);
#pragma unroll
      for (int n = 0; n < N / 2; ++n) {
        const int at_key = column + n / 4 * 8 + n % 2, h = n / 2 % 2;
        if (at_key < keys[h].begin || at_key >= keys[h].end) s[n] = -INFINITY;
      }
    }
    return add_here ? 1 : factor;
  }
};

}  // namespace lazy::kernels::cuda::hopper
