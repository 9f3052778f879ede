// Functions shared by the Hopper kernels: the 64 rows of a warpgroup, their scores, and products of tiles.
#pragma once
#include "attention/cuda/backward_sums.cuh"
#include "attention/cuda/hopper.cuh"
#include "attention/cuda/portable.cuh"

namespace lazy::kernels::cuda::hopper {

using portable::all_visible;
using portable::kLn2;
using portable::kLog2e;
using portable::scaled_sink;

// Row states for the second kernel of the backward. Each tile of 64 rows has four arrays of 64 floats:
//   lse2            log-sum-exp in units of log2
//   factor          1 / norm, which corrects the rounding error of lse2 (see weights.cuh); 1 if norm was not computed
//   factor center   product of `factor` and the center, which is subtracted from the gradients of the weights
//   offset          offset of Elastic-Softmax
// With f = exp2(score - lse2), and with g = the gradient of the weight, or 0 if the weight is zero:
//   weight = max(factor f + offset, 0),  ds = f (factor g - factor center).
// If a row sees only one key, p = 1 for every score and ds is exactly 0; the factor is then 0, and one is added to the
// offset. tiles: number of row tiles per head and batch entry. tile: index of the tile, counted over all documents.
__device__ inline float* row_state(const Params& p, const Tile& t, int head, int tiles, int tile) {
  return p.row_state + ((static_cast<int64_t>(t.batch) * p.heads + head) * tiles + tile) * 256;
}
struct StoreRowState {
  __device__ static void put(const Params& p, const Tile& t, int tiles, int tile, int row,
                             const BackwardRowState& state) {
    float* const to = row_state(p, t, t.head, tiles, tile) + row - t.first;
    to[0] = state.anchor;
    to[64] = state.alone ? 0 : 1;
    to[128] = state.alone ? 0 : state.center;
    to[192] = state.offset + state.alone;
  }
};

// A range of key tiles. key() returns the first key of the n-th tile. The tiles are counted in ascending order, or in
// descending order if `back` is true.
struct Span {
  int begin, tiles;
  template <int N>
  __device__ int key(int n, bool back) const {
    return begin + (back ? tiles - 1 - n : n) * N;
  }
};

// Fills a table of distance biases in units of log2. Entry pad + d is the bias for distance d. `pad` entries on both
// sides are zero, so that a tile at the border of the bias window can read the table without bounds checks.
__device__ inline void fill_table(const Params& p, int head, float* table, int pad, int thread, int threads) {
  if (p.bias_window == 0) return;
  for (int n = thread; n < p.bias_window + 2 * pad; n += threads) {
    const int d = n - pad;
    table[n] = d >= 0 && d < p.bias_window ? p.distance_bias[head * p.bias_window + d] * kLog2e : 0;
  }
}

// Issues the product c = X Y^T over D dimensions as one wgmma group, where c has the shape 64 x (2 A). x and y are the
// descriptor_base of tiles with X_ROWS and Y_ROWS rows, stored as blocks of 64 columns.
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

// Loads the warp's 16 rows as the left operand of a product. `x` is the address of the first of the warpgroup's 64
// rows; the tile has X_ROWS rows.
template <int D, int X_ROWS>
__device__ void load_left(uint32_t (&left)[D / 16][4], uint32_t x) {
  const int lane = threadIdx.x % 32, row = threadIdx.x / 32 % 4 * 16 + lane % 16;
#pragma unroll
  for (int d = 0; d < D / 16; ++d) {
    load_matrices(left[d], x + d / 4 * X_ROWS * 128 + swizzled(row, d % 4 * 2 + lane / 16));
  }
}

// Issues the product c = X Y^T with the left operand X in registers.
template <typename T, int D, int Y_ROWS, int A>
__device__ void issue_product(float (&c)[A], const uint32_t (&x)[D / 16][4], uint32_t y) {
  wgmma_fence();
#pragma unroll
  for (int d = 0; d < D / 16; ++d) {
    wgmma<T, 0>(c, x[d], descriptor(y + descriptor_units(d / 4 * Y_ROWS * 128 + d % 4 * 32)), d > 0);
  }
  wgmma_commit();
}

// Returns the sum over the four lanes that share a row.
__device__ inline float quad_sum(float x) {
  x += __shfl_xor_sync(~0u, x, 1);
  return x + __shfl_xor_sync(~0u, x, 2);
}

// The 64 query rows of a warpgroup, starting at row `first`. Accumulator 4 n + 2 h + e of a thread belongs to row(h)
// and column 8 n + 2 (lane % 4) + e.
struct RowGroup {
  const Params& p;
  const Tile& t;
  const float* table;  // address of the entry for distance 0 in the table of fill_table, or null
  int first, lane, leader;
  int position;  // position of row(0) among the keys
  Keys common;   // keys that all rows see
  // The keys, divided by cut() into tiles of N keys that start at key `origin`. `tiles` is the range of tiles that at
  // least one row sees, and `bare` the range of tiles that need neither a mask nor a bias.
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

  // Returns the keys that row(h) sees. Callers call this function at every use instead of storing the result, to save
  // registers in the loops.
  __device__ Keys keys(int h) const {
    int at = row(h);
    asm volatile("" : "+r"(at));
    return at < t.q_length ? visible(p, t, at) : Keys{0, 0};
  }
  // Masks a tile of N keys that begins with `key`: sets the accumulators to `value` whose row exists but does not see
  // the key.
  template <int N>
  __device__ void hide(float (&s)[N / 2], int key, float value) const {
    int at = position - key - 2 * (lane % 4);  // distance of accumulator n: at + 8 h - (n / 4 * 8 + n % 2)
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

  // Adds biases and masks to the products s and returns a factor: s * factor is the score in units of log2. The
  // portable kernels use RowSweep::finish_scores for this.
  template <int N>
  __device__ float finish(float (&s)[N / 2], int key) {
    const int nearest = first + t.shift() - (key + N - 1), farthest = first + 63 + t.shift() - key;
    const bool has_bias = table && nearest < p.bias_window && farthest >= 0;
    const bool full = common.begin <= key && common.end >= key + N;
    if (!has_bias && full) return factor;
    if (has_bias) {
      // The accumulators of row r + 8 and column block n have the same distances as the accumulators of row r and
      // column block n - 1, so each bias is loaded only once for both.
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
