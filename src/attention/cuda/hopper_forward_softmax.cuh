// The Hopper forward for softmax and softmax_sink, with one sweep over the keys that starts at the diagonal and goes
// backwards. Weights are exp2(s - base), where the base is a maximum of earlier scores. The base is updated and the
// accumulators are rescaled only if a sum of weights exceeds the range of fp16. Most tiles therefore need only the
// exponentials and their sums.
#pragma once
#include "attention/cuda/hopper_forward_consumer.cuh"

namespace lazy::kernels::cuda::hopper {

// Recomputes the scores of the warp's 16 rows and a tile of N keys. The function uses mma.sync instead of wgmma, so
// that one warp can call it alone, but returns the scores in the register layout of wgmma.
template <typename T, int D, int X_ROWS, int N>
__device__ void scores_of_warp(float (&s)[N / 2], uint32_t queries, uint32_t keys) {
  int thread = threadIdx.x;
  asm volatile("" : "+r"(thread));  // prevents the compiler from hoisting the addresses out of the caller's loop
  const int lane = thread % 32, row = thread / 32 % 4 * 16 + lane % 16;
#pragma unroll
  for (int n = 0; n < N / 2; ++n) s[n] = 0;
#pragma unroll 1
  for (int d = 0; d < D / 16; ++d) {
    uint32_t x[4], y[4];
    load_matrices(x, queries + d / 4 * X_ROWS * 128 + swizzled(row, d % 4 * 2 + lane / 16));
#pragma unroll
    for (int n = 0; n < N / 16; ++n) {
      load_matrices(y, keys + d / 4 * N * 128 + swizzled(16 * n + lane % 8 + lane / 16 * 8, d % 4 * 2 + lane / 8 % 2));
      mma<T>(reinterpret_cast<float(&)[4]>(s[8 * n]), x, y[0], y[1]);
      mma<T>(reinterpret_cast<float(&)[4]>(s[8 * n + 4]), x, y[2], y[3]);
    }
  }
}

// Arguments of RowScores::add for one tile. most: maximum of the products s. added: sum of x exp2(x) with x = s c -
// base.
struct TileScores {
  float most[2] = {-INFINITY, -INFINITY}, added[2] = {};
};

// Converts s to exp2(s c - base). `sum` receives the sum of the thread's exponentials for each of its two rows.
template <bool SCORES, int A>
__device__ void exponentials(float (&s)[A], float c, const float (&base)[2], float (&sum)[2], TileScores& scores) {
  float part[2][2] = {};
#pragma unroll
  for (int n = 0; n < A; ++n) {
    const int h = n / 2 % 2;
    const float x = fmaf(s[n], c, -base[h]), e = exp2_fast(x);
    if constexpr (SCORES) {
      scores.most[h] = fmaxf(scores.most[h], s[n]);
      scores.added[h] = LaneScores::added(scores.added[h], e, x);
    }
    s[n] = e;
    part[h][n % 2] += e;
  }
#pragma unroll
  for (int h = 0; h < 2; ++h) sum[h] = part[h][0] + part[h][1];
}

// Raises the bases of the thread's rows to the maxima of the scores. The four lanes that share a row have equal bases.
// `shrink` is the factor by which the previous sums must be multiplied.
template <int A>
__device__ void raise_bases(const float (&s)[A], float c, float (&base)[2], float (&shrink)[2]) {
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    float most = -INFINITY;
#pragma unroll
    for (int n = 0; n < A; n += 4) most = fmaxf(most, fmaxf(s[n + 2 * h], s[n + 2 * h + 1]));
    most = fmaxf(most, __shfl_xor_sync(~0u, most, 1));
    most = fmaxf(fmaxf(most, __shfl_xor_sync(~0u, most, 2)) * c, base[h]);
    shrink[h] = exp2_fast(base[h] - (most > -INFINITY ? most : 0));
    base[h] = most;
  }
}

// Raises the bases to the maxima of the scores, converts s to exponentials relative to the new bases, and adds their
// sums to the sums of the rows. `shrink`: see raise_bases.
template <bool SCORES, int A>
__device__ void raise_rows(float (&s)[A], float c, float (&base)[2], float (&sum)[2], float (&shrink)[2],
                           RowScores& scores) {
  float part[2], from[2];
  const float before[2] = {base[0], base[1]};
  raise_bases(s, c, base, shrink);
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    from[h] = base[h] > -INFINITY ? base[h] : 0;
    if constexpr (SCORES) {
      scores.weighted[h] = LaneScores::shrunk(scores.weighted[h], sum[h], before[h] - from[h], shrink[h]);
    }
  }
  TileScores of_tile;
  exponentials<SCORES>(s, c, from, part, of_tile);
  if constexpr (SCORES) scores.add(c, of_tile.most, of_tile.added);
#pragma unroll
  for (int h = 0; h < 2; ++h) sum[h] = sum[h] * shrink[h] + part[h];
}

// Computes the output o and the results r of the warpgroup's rows. SCORES: also writes Params::score_stats, which is
// only supported without a sink.
template <typename T, int D, bool SCORES>
__device__ void softmax_rows(Consumer<T, D, false>& b, float (&o)[D / 2], RowResults& r) {
  using S = ForwardShape<D, false>;
  constexpr int N = S::N, A = N / 2;
  constexpr float most_sum = 0x1p15f;
  const bool has_sink = takes_sink(b.p.normalizer);
  const int lo = b.tiles.begin, hi = b.tiles.end, count = b.count;
  float base[2], sum[2];
#pragma unroll
  for (int h = 0; h < 2; ++h) {  // a row without keys gets the base 0, because with -inf every tile would be rescaled
    base[h] = b.keys(h).begin >= b.keys(h).end ? 0 : has_sink ? scaled_sink(b.p, b.t.head) : -INFINITY;
    sum[h] = has_sink && b.lane % 4 == 0 ? 1 : 0;
  }
  // Loop variables count in the order of the sweep: step n processes the tile with index count - 1 - n.
  const int begin = lo < hi ? count - hi : count, end = count - lo;
#pragma unroll 1
  for (int n = 0; n < begin; ++n) {
    b.skip_order();
    b.skip_k(n);
    b.skip_v(n);
  }
  if (begin == count) return;

  float s[A];
  uint32_t weights[N / 16][4];
  auto finish = [&](int n) { return b.finish_tile(s, count - 1 - n); };
  RowScores scores;
  auto raise = [&](float c) {
    float shrink[2];
    raise_rows<SCORES>(s, c, base, sum, shrink, scores);
#pragma unroll
    for (int n = 0; n < D / 2; ++n) o[n] *= shrink[n / 2 % 2];
  };
  b.order.wait();
  b.issue_scores(s, begin);
  b.order.pass();
  wgmma_wait<0>();
  b.release_k(begin);
  raise(finish(begin));
  pack_weights<T, N>(weights, s);
  for (int n = begin + 1; n < end; ++n) {
    b.order.wait();
    b.issue_scores(s, n);
    b.wait_v(n - 1);
    b.issue_sum(o, weights, n - 1);
    b.order.pass();
    wgmma_wait<1>();
    float part[2];
    TileScores of_tile;
    const float c = finish(n);
    exponentials<SCORES>(s, c, base, part, of_tile);
    const bool fits = part[0] < most_sum && part[1] < most_sum;  // false for a NaN and if the base is -inf
    wgmma_wait<0>();  // not in the branches, because all warps of the warpgroup must execute the same instruction
    if (__all_sync(~0u, fits)) {
      sum[0] += part[0];
      sum[1] += part[1];
      if constexpr (SCORES) scores.add(c, of_tile.most, of_tile.added);
    } else {
      scores_of_warp<T, D, S::M, N>(s, b.q, b.k + n % S::k_stages * S::tile_bytes);
      raise(finish(n));
    }
    b.release_k(n);
    b.release_v(n - 1);
    pack_weights<T, N>(weights, s);
  }
  b.wait_v(end - 1);
  b.issue_sum(o, weights, end - 1);
  wgmma_wait<0>();
  b.release_v(end - 1);
#pragma unroll 1
  for (int n = end; n < count; ++n) {
    b.skip_order();
    b.skip_k(n);
    b.skip_v(n);
  }

  if constexpr (SCORES) scores.write(b, base, sum);
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    const bool empty = b.keys(h).begin >= b.keys(h).end;
    const float all = quad_sum(sum[h]), inverse = empty ? 0 : 1 / all;
    r.lse[h] = empty ? -INFINITY : (base[h] + log2f(all)) * kLn2;
#pragma unroll
    for (int n = 0; n < D / 2; n += 4) {
      o[n + 2 * h] *= inverse;
      o[n + 2 * h + 1] *= inverse;
    }
    // s still contains the weights of the tile that was processed last, which is the tile with key 0 if lo is 0.
    if (b.lane % 4 == 0 && !empty) {
      r.head[h] = lo == 0 && b.origin == 0 ? s[2 * h] * inverse : 0;
      r.total[h] = has_sink ? 1 - exp2_fast(scaled_sink(b.p, b.t.head) - base[h]) * inverse : 1;
      r.alive[h] = b.keys(h).end - b.keys(h).begin;
    }
  }
}

}  // namespace lazy::kernels::cuda::hopper
