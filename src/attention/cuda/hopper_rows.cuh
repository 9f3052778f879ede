// Shared by the Hopper kernels: a warpgroup's 64 rows, their scores, products of tiles.
#pragma once
#include "attention/cuda/backward_sums.cuh"
#include "attention/cuda/hopper.cuh"
#include "attention/cuda/portable.cuh"

namespace lazy::kernels::cuda::hopper {

using portable::all_visible;
using portable::kLn2;
using portable::kLog2e;

// Row statistics for the backward's second kernel: per tile of 64 rows, four arrays of 64 numbers: lse2 in units of
// log2, factor, factor x center, and elastic's offset, so that with f = exp2(score - lse2)
//   weight = max(factor f + offset, 0),  ds = f (factor g - factor center), with g = 0 where a key is dead.
// A row's only key has p = 1 whatever its score, and ds = 0 exactly: the factor is 0, and one is added to the offset.
// `tiles`: of one head and batch entry; `tile` counts the tiles of earlier documents too.
__device__ inline float* row_state(const Params& p, const Tile& t, int head, int tiles, int tile) {
  return p.row_state + ((static_cast<int64_t>(t.batch) * p.heads + head) * tiles + tile) * 256;
}
struct StoreRowState {
  __device__ static void put(const Params& p, const Tile& t, int tiles, int tile, int row, const RowState& state) {
    float* const to = row_state(p, t, t.head, tiles, tile) + row - t.first;
    to[0] = state.anchor;
    to[64] = state.alone ? 0 : 1;
    to[128] = state.alone ? 0 : state.center;
    to[192] = state.offset + state.alone;
  }
};

// Keys of a tile from the last to the first (first sweep), or the other way round.
struct Span {
  int begin, tiles;
  template <int N>
  __device__ int key(int n, bool back) const {
    return begin + (back ? tiles - 1 - n : n) * N;
  }
};

// Distance biases in units of log2: entry pad + d for distance d, zeros for `pad` entries on both sides, so that no
// tile that touches the window needs a test.
__device__ inline void fill_table(const Params& p, int head, float* table, int pad, int thread, int threads) {
  if (p.bias_window == 0) return;
  for (int n = thread; n < p.bias_window + 2 * pad; n += threads) {
    const int d = n - pad;
    table[n] = d >= 0 && d < p.bias_window ? p.distance_bias[head * p.bias_window + d] * kLog2e : 0;
  }
}

// c (64 x 2 A) = X Y^T over D: tiles (descriptor_base) of 64-column halves of X_ROWS and Y_ROWS rows. Committed as one
// group.
template <typename T, int D, int X_ROWS, int Y_ROWS, int A>
__device__ void issue_product(float (&c)[A], uint32_t x, uint32_t y) {
  wgmma_fence();
#pragma unroll
  for (int d = 0; d < D / 16; ++d) {
    const int half = d / 4, inside = d % 4 * 32;
    wgmma<T, 0, 0>(c, descriptor(x + descriptor_units(half * X_ROWS * 128 + inside)),
                   descriptor(y + descriptor_units(half * Y_ROWS * 128 + inside)), d > 0);
  }
  wgmma_commit();
}

// The warp's 16 of the 64 rows from `x` on, of a tile of X_ROWS rows, as the left side of products.
template <int D, int X_ROWS>
__device__ void load_left(uint32_t (&left)[D / 16][4], uint32_t x) {
  const int lane = threadIdx.x % 32, row = threadIdx.x / 32 % 4 * 16 + lane % 16;
#pragma unroll
  for (int d = 0; d < D / 16; ++d) {
    load_matrices(left[d], x + d / 4 * X_ROWS * 128 + swizzled(row, d % 4 * 2 + lane / 16));
  }
}

// The same product with a left side in registers.
template <typename T, int D, int Y_ROWS, int A>
__device__ void issue_product(float (&c)[A], const uint32_t (&x)[D / 16][4], uint32_t y) {
  wgmma_fence();
#pragma unroll
  for (int d = 0; d < D / 16; ++d) {
    wgmma<T, 0>(c, x[d], descriptor(y + descriptor_units(d / 4 * Y_ROWS * 128 + d % 4 * 32)), d > 0);
  }
  wgmma_commit();
}

// Over the four lanes that share a row.
__device__ inline float quad_sum(float x) {
  x += __shfl_xor_sync(~0u, x, 1);
  return x + __shfl_xor_sync(~0u, x, 2);
}

// The 64 rows from `first` on. A thread's accumulators 4 n + 2 h + e belong to row(h) and column 8 n + 2 (lane % 4) +
// e.
struct RowGroup {
  const Params& p;
  const Tile& t;
  const float* table;  // fill_table's entry of distance 0, or null
  int first, lane, leader;
  int position;  // of row(0) among the keys
  Keys common;   // what all rows see
  // Set by cut: tiles of N keys from key `origin` on that some row sees, and those that need neither mask nor bias.
  int origin;
  Keys tiles, bare;
  float factor;

  __device__ RowGroup(const Params& p, const Tile& t) : p(p), t(t) {}
  __device__ void start(int first_row, const float* biases) {
    first = first_row;
    table = biases;
    lane = threadIdx.x % 32;
    leader = threadIdx.x % 128 == 0;
    factor = p.scale * kLog2e;
    position = first + threadIdx.x / 32 % 4 * 16 + lane / 4 + t.shift();
    common = {visible(p, t, min(first + 64, t.q_length) - 1).begin, visible(p, t, first).end};
  }
  template <int N>
  __device__ void cut(int from) {
    origin = from;
    tiles = bare = {0, 0};
    if (first >= t.q_length) return;
    const int begin = visible(p, t, first).begin, end = visible(p, t, min(first + 64, t.q_length) - 1).end;
    if (begin >= end) return;
    tiles = {(begin - origin) / N, (end - origin + N - 1) / N};
    bare = {(common.begin - origin + N - 1) / N, max(common.end - origin, 0) / N};
    if (table) bare.end = min(bare.end, max(first + t.shift() + 1 - p.bias_window - origin, 0) / N);
  }
  __device__ int row(int h) const { return position - t.shift() + 8 * h; }

  // The keys that row(h) sees. Recomputed at every use: registers held for it would be missing in the loops.
  __device__ Keys keys(int h) const {
    int at = row(h);
    asm volatile("" : "+r"(at));
    return at < t.q_length ? visible(p, t, at) : Keys{0, 0};
  }
  // Gives accumulators of a tile of N keys `value` where the row (if it exists) does not see the key.
  template <int N>
  __device__ void hide(float (&s)[N / 2], int key, float value) const {
    int at = position - key - 2 * (lane % 4);  // accumulator n: distance at + 8 h - (n / 4 * 8 + n % 2)
    asm volatile("" : "+r"(at));
    const int end = t.k_length - key - 2 * (lane % 4);
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const int first_seen = p.window >= 0 ? at + 8 * h - p.window + 1 : -N;
      const int last_seen = p.causal ? at + 8 * h : p.window >= 0 ? at + 8 * h + p.window - 1 : N;
      const int end_seen = min(last_seen + 1, end);
#pragma unroll
      for (int n = 0; n < N / 2; ++n) {
        const int column = n / 4 * 8 + n % 2;
        if (n / 2 % 2 == h && (column < first_seen || column >= end_seen)) s[n] = value;
      }
    }
  }

  // As RowSweep::scores of the portable kernels: s * the returned factor is in units of log2.
  template <int N>
  __device__ float finish(float (&s)[N / 2], int key) {
    const int nearest = first + t.shift() - (key + N - 1), farthest = first + 63 + t.shift() - key;
    const bool has_bias = table && nearest < p.bias_window && farthest >= 0;
    const bool full = common.begin <= key && common.end >= key + N;
    if (!has_bias && full) return factor;
    if (has_bias) {
      // Row r + 8 at column block n meets the distances of row r at block n - 1.
      const float* at = table + position - key - 2 * (lane % 4);
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
      hide<N>(s, key, -INFINITY);
    }
    return has_bias ? 1 : factor;
  }
};

}  // namespace lazy::kernels::cuda::hopper
