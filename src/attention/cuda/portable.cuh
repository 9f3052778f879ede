// Functions shared by the portable tensor-core kernels: tiles in shared memory, products of tiles, and the positional
// bias of the scores.
//
// Symbols in shapes: a tile of scores has M rows (16 MI per warp) and N columns; D is the head size.
#pragma once
#include "attention/cuda/mma.cuh"
#include "attention/cuda/score_sums.cuh"
#include "attention/cuda/tiles.cuh"

namespace lazy::kernels::cuda::portable {

constexpr float kLog2e = 1.4426950408889634f, kLn2 = 0.6931471805599453f;

// The sink of a head, in units of log2. __fmul_rn prevents contraction to FMA: if the sink is the largest score, its
// exponential relative to the largest score must be exactly 1. Otherwise the rounding error of a sink far above the
// scores would exceed the weights of all keys.
__device__ inline float scaled_sink(const Params& p, int head) { return __fmul_rn(p.sink[head], kLog2e); }

// Template argument of ScoreSums for scores in units of log2.
struct BinaryExponential {
  static constexpr float unit = kLn2;
  __device__ static float of(float x) { return exp2_fast(x); }
};
using LaneScores = ScoreSums<BinaryExponential>;

__device__ inline void put_score_statistics(const Params& p, const Tile& t, int row, const ScoreStatistics& found) {
  const int64_t index = row_index(p, t, t.head, row);
  p.score_stats[index] = found.largest;
  p.score_stats[static_cast<int64_t>(p.batch) * p.heads * p.q_length + index] = found.entropy;
}

// Byte offset of 16-byte chunk `c` in a row of W 16-bit elements. The swizzle puts the same chunk of eight consecutive
// rows in different banks.
template <int W>
__device__ uint32_t at(int row, int c) {
  constexpr int chunks = W / 8;
  if constexpr (chunks % 8 == 0) return (row * chunks + (c ^ (row & 7))) * 16;
  if constexpr (chunks % 8 == 4) return (row * chunks + (c ^ ((row >> 1) & 3))) * 16;
  return (row * chunks + (c ^ ((row >> 2) & 1))) * 16;
}

// Starts the asynchronous copy of rows [0, R) of a tile. Rows with an index of `limit` or above become zero. `from` is
// the address of the first row.
template <typename T, int R, int D, int THREADS>
__device__ void load_tile(uint32_t to, const T* from, int64_t step, int limit) {
  constexpr unsigned chunks = D / 8;
  static_assert(R * chunks % THREADS == 0);
#pragma unroll
  for (unsigned i = 0; i < R * chunks / THREADS; ++i) {
    const unsigned n = threadIdx.x + i * THREADS, row = n / chunks, c = n % chunks;
    const bool there = static_cast<int>(row) < limit;
    copy_async(to + at<D>(row, c), from + (there ? row * step : 0) + c * 8, there);
  }
}

// A warp's tile consists of blocks of 16 x 16 elements. Products take a bit mask of the blocks to compute: bit n * MI +
// m is for block row m and block column n.
constexpr uint32_t kAllBlocks = ~0u;
template <int MI>
__device__ bool any_block(uint32_t blocks, int n) {
  return blocks >> n * MI & ((1u << MI) - 1);
}

// Computes c += A B^T for tiles A and B of shape [row][D]. a_row is the first of the warp's rows in A; B has 16 NT
// rows. `blocks` is the mask of the blocks of c that are computed; the remaining blocks of c are not changed.
template <typename T, int D, int MI, int NT>
__device__ void product_nt(float (&c)[MI][2 * NT][4], uint32_t a, int a_row, uint32_t b, uint32_t blocks = kAllBlocks) {
  const int lane = threadIdx.x & 31;
#pragma unroll
  for (int k = 0; k < D / 16; ++k) {
    uint32_t x[MI][4];
#pragma unroll
    for (int m = 0; m < MI; ++m) load_matrices(x[m], a + at<D>(a_row + 16 * m + (lane & 15), 2 * k + (lane >> 4)));
#pragma unroll
    for (int n = 0; n < NT; ++n) {
      if (!any_block<MI>(blocks, n)) continue;
      uint32_t y[4];
      load_matrices(y, b + at<D>(16 * n + (lane & 7) + (lane >> 4) * 8, 2 * k + ((lane >> 3) & 1)));
#pragma unroll
      for (int m = 0; m < MI; ++m) {
        if (!(blocks >> (n * MI + m) & 1)) continue;
        mma<T>(c[m][2 * n], x[m], y[0], y[1]);
        mma<T>(c[m][2 * n + 1], x[m], y[2], y[3]);
      }
    }
  }
}

// Converts the 16 x 16 block k of an accumulator to the left operand of a product.
template <typename T, int N>
__device__ void as_left(uint32_t (&a)[4], const float (&s)[N][4], int k) {
  a[0] = pack<T>(s[2 * k][0], s[2 * k][1]);
  a[1] = pack<T>(s[2 * k][2], s[2 * k][3]);
  a[2] = pack<T>(s[2 * k + 1][0], s[2 * k + 1][1]);
  a[3] = pack<T>(s[2 * k + 1][2], s[2 * k + 1][3]);
}

// Computes c += S B, with S (16 MI x 16 KT) in accumulators and B a tile of shape [inner][D]. Only 16 NT columns of B,
// starting at 16-byte chunk `chunk`, are used.
template <typename T, int D, int MI, int KT, int NT>
__device__ void product_nn(float (&c)[MI][2 * NT][4], const float (&s)[MI][2 * KT][4], uint32_t b, int chunk) {
  const int lane = threadIdx.x & 31;
#pragma unroll
  for (int k = 0; k < KT; ++k) {
    uint32_t x[MI][4];
#pragma unroll
    for (int m = 0; m < MI; ++m) as_left<T>(x[m], s[m], k);
#pragma unroll
    for (int n = 0; n < NT; ++n) {
      uint32_t y[4];
      load_matrices_transposed(y, b + at<D>(16 * k + (lane & 15), chunk + 2 * n + (lane >> 4)));
#pragma unroll
      for (int m = 0; m < MI; ++m) {
        mma<T>(c[m][2 * n], x[m], y[0], y[1]);
        mma<T>(c[m][2 * n + 1], x[m], y[2], y[3]);
      }
    }
  }
}

template <int A, int B, int C>
__device__ void clear(float (&x)[A][B][C]) {
#pragma unroll
  for (int a = 0; a < A; ++a) {
#pragma unroll
    for (int b = 0; b < B; ++b) {
#pragma unroll
      for (int c = 0; c < C; ++c) x[a][b][c] = 0;
    }
  }
}

// Computes c += S B for an S that is already packed to 16 bits. `blocks` is the mask of the blocks of S that are used;
// the remaining blocks of S are zero.
template <typename T, int D, int MI, int KT, int NT>
__device__ void product_nn(float (&c)[MI][2 * NT][4], const uint32_t (&s)[MI][KT][4], uint32_t b, int chunk,
                           uint32_t blocks = kAllBlocks) {
  const int lane = threadIdx.x & 31;
#pragma unroll
  for (int k = 0; k < KT; ++k) {
    if (!any_block<MI>(blocks, k)) continue;
#pragma unroll
    for (int n = 0; n < NT; ++n) {
      uint32_t y[4];
      load_matrices_transposed(y, b + at<D>(16 * k + (lane & 15), chunk + 2 * n + (lane >> 4)));
#pragma unroll
      for (int m = 0; m < MI; ++m) {
        if (!(blocks >> (k * MI + m) & 1)) continue;
        mma<T>(c[m][2 * n], s[m][k], y[0], y[1]);
        mma<T>(c[m][2 * n + 1], s[m][k], y[2], y[3]);
      }
    }
  }
}

// Converts dot products to capped scores in natural units, not in units of log2.
template <int A, int B, int C>
__device__ void cap(const Softcap& softcap, float (&x)[A][B][C]) {
#pragma unroll
  for (int a = 0; a < A; ++a) {
#pragma unroll
    for (int b = 0; b < B; ++b) {
#pragma unroll
      for (int c = 0; c < C; ++c) x[a][b][c] = capped(softcap, x[a][b][c]);
    }
  }
}
// Converts gradients of capped scores to gradients of scale * (q . k). To obtain gradients of q . k, the caller
// multiplies by the scale.
template <int A, int B, int C>
__device__ void uncap(const Softcap& softcap, const float (&dots)[A][B][C], float (&ds)[A][B][C]) {
#pragma unroll
  for (int a = 0; a < A; ++a) {
#pragma unroll
    for (int b = 0; b < B; ++b) {
#pragma unroll
      for (int c = 0; c < C; ++c) ds[a][b][c] = uncapped_gradient(softcap, dots[a][b][c], ds[a][b][c]);
    }
  }
}

// Returns the positional bias (distance bias plus ALiBi) of a score at this signed distance, times `unit`.
__device__ inline float score_bias(const Params& p, int head, int distance, float unit) {
  distance = abs(distance);
  float x = distance < p.bias_window ? p.distance_bias[static_cast<int64_t>(head) * p.bias_window + distance] : 0;
  if (p.alibi_slopes) x -= p.alibi_slopes[head] * static_cast<float>(distance);
  return x * unit;
}

// Whether any pair of rows [row, row + M) and keys [key, key + N) has a positional bias.
__device__ inline bool any_score_bias(const Params& p, const Tile& t, int row, int M, int key, int N) {
  if (p.alibi_slopes) return true;
  const int nearest = row + t.shift() - (key + N - 1);  // all signed distances are in [nearest, farthest]
  const int farthest = row + M - 1 + t.shift() - key;
  return p.bias_window > 0 && nearest < p.bias_window && farthest > -p.bias_window;
}

// Whether every existing row of [row, row + M) sees every key of [key, key + N).
__device__ inline bool all_visible(const Params& p, const Tile& t, int row, int M, int key, int N) {
  const int last = min(row + M, t.q_length) - 1;
  return visible(p, t, last).begin <= key && visible(p, t, row).end >= key + N;
}

// Completes a row's maximum score (in units of log2) and its sum of exponentials relative to this maximum: merges them
// over the four adjacent lanes that share the row, and adds the term of the sink if the normalizer takes one.
__device__ inline void finish_row_sum(const Params& p, int head, float& largest, float& sum) {
  const auto add = [&](float other, float other_sum) {
    const float most = fmaxf(largest, other);
    if (most > -INFINITY) sum = sum * exp2_fast(largest - most) + other_sum * exp2_fast(other - most);
    largest = most;
  };
#pragma unroll
  for (int d = 1; d < 4; d *= 2) {
    const float other = __shfl_xor_sync(~0u, largest, d), other_sum = __shfl_xor_sync(~0u, sum, d);
    add(other, other_sum);
  }
  if (takes_sink(p.normalizer)) add(scaled_sink(p, head), 1);
}

// Returns the offset of Elastic-Softmax, where weight = max(p + offset, 0): tau, or tau / (number of visible keys). In
// a row with one key and without a sink, the computed p may differ from 1 by rounding. If the offset is -1 or below,
// the function therefore returns -2, which makes the weight exactly zero.
__device__ inline float elastic_offset(const Params& p, const Keys& keys, float tau) {
  const int count = max(keys.end - keys.begin, 1);
  const float offset = p.per_visible ? tau / static_cast<float>(count) : tau;
  return count == 1 && offset <= -1 ? -2 : offset;
}

}  // namespace lazy::kernels::cuda::portable
