// The Hopper forward for elastic and elastic_sink, with two sweeps over the keys. The first sweep starts at the
// diagonal and goes backwards; it computes the scores for the row's sum of exponentials. The second sweep goes in the
// opposite direction and recomputes the scores for the weights max(p + offset, 0) and their weighted sum of V. This
// needs three products and two exponentials per query-key pair, compared with two products and one exponential in
// softmax attention. The tile at which the first sweep ends is the first tile of the second sweep, so its scores are
// computed only once.
#pragma once
#include "attention/cuda/hopper_forward_consumer.cuh"

namespace lazy::kernels::cuda::hopper {

// Adds exp2(s c - base) for a tile of scores s to the thread's sums. fp32 has a large range, so the base only needs to
// be near the row's largest score: it is the maximum of the first tile and is changed only if a sum would leave the
// range. Eight independent partial sums avoid a long chain of dependent additions.
template <bool SCORES, int A>
__device__ void add_row_sums(const float (&s)[A], float c, float (&base)[2], float (&sum)[2], RowScores& scores) {
  float part[2][4] = {}, top[2] = {-INFINITY, -INFINITY}, weighted[2] = {};
#pragma unroll
  for (int n = 0; n < A; n += 8) {
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      const int h = i / 2 % 2;
      const float x = fmaf(s[n + i], c, -base[h]), e = exp2_fast(x);
      part[h][i / 4 * 2 + i % 2] += e;
      if constexpr (SCORES) {
        top[h] = fmaxf(top[h], s[n + i]);
        weighted[h] = LaneScores::added(weighted[h], e, x);
      }
    }
  }
  float all[2];
#pragma unroll
  for (int h = 0; h < 2; ++h) all[h] = (part[h][0] + part[h][1]) + (part[h][2] + part[h][3]);
  if (all[0] < 0x1p60f && all[1] < 0x1p60f) {  // false for the first tile (its base is -inf) and for a NaN
    sum[0] += all[0];
    sum[1] += all[1];
    if constexpr (SCORES) scores.add(c, top, weighted);
    return;
  }
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    float most = -INFINITY;
#pragma unroll
    for (int n = 0; n < A; n += 4) most = fmaxf(most, fmaxf(s[n + 2 * h], s[n + 2 * h + 1]));
    most = fmaxf(most * c, base[h]);
    const float from = most > -INFINITY ? most : 0, shift = base[h] - from, shrink = exp2_fast(shift);
    if constexpr (SCORES) scores.weighted[h] = LaneScores::shrunk(scores.weighted[h], sum[h], shift, shrink);
    sum[h] *= shrink;
    weighted[h] = 0;
#pragma unroll
    for (int n = 0; n < A; n += 4) {
      const float x = fmaf(s[n + 2 * h], c, -from), y = fmaf(s[n + 2 * h + 1], c, -from);
      const float e = exp2_fast(x), f = exp2_fast(y);
      sum[h] += e + f;
      if constexpr (SCORES) weighted[h] = LaneScores::added(LaneScores::added(weighted[h], e, x), f, y);
    }
    base[h] = most;
  }
  if constexpr (SCORES) scores.add(c, top, weighted);
}

// First sweep over the tiles that the rows see, from the last tile to the first. On return, s contains the scores of
// the first tile, and the return value is the factor that converts them to units of log2.
template <bool SCORES, typename Rows>
__device__ float sum_rows(Rows& b, float (&s)[Rows::A], float (&base)[2], float (&sum)[2], RowScores& scores) {
  const int lo = b.tiles.begin, last = b.tiles.end - 1 - lo;
  auto use = [&](int n) { return b.count - 1 - (lo + n); };  // buffer index of the n-th tile that the rows see
  auto add = [&](float(&x)[Rows::A], int n) {
    const float c = b.finish_tile(x, lo + n);
    add_row_sums<SCORES>(x, c, base, sum, scores);
    return c;
  };
  auto wait = [&](int n) {
    wgmma_wait<0>();
    b.release_k(use(n));
  };
  float y[Rows::A];  // scores of the tiles with odd index; s has the scores of the tiles with even index
  int n = last;
  if (n % 2 == 1) {
    b.issue_scores(y, use(n));
    wait(n);
    add(y, n--);
  }
  b.issue_scores(s, use(n));
  wait(n);
  for (; n > 0; n -= 2) {
    b.issue_scores(y, use(n - 1));
    add(s, n);
    wait(n - 1);
    b.issue_scores(s, use(n - 2));
    add(y, n - 1);
    wait(n - 2);
  }
  return add(s, 0);
}

// Computes the output o and the results of the warpgroup's rows. `alive` receives the sums of the rows of V with
// nonzero weight (alive_sum). From them, the backward computes the center of each row, which it subtracts from the
// gradients of the row's weights (backward_sums.cuh).
template <typename T, int D, bool STATS, bool ALIVE, bool SCORES>
__device__ void elastic_rows(Consumer<T, D, ALIVE>& b, float (&o)[D / 2], float (&alive)[D / 2], RowResults& r) {
  constexpr int N = Consumer<T, D, ALIVE>::N, A = Consumer<T, D, ALIVE>::A;
  const float tau = b.p.tau[b.t.head];
  const int lo = b.tiles.begin, hi = b.tiles.end, count = b.count;
#pragma unroll 1
  for (int n = count - 1; n >= hi; --n) b.skip_k(count - 1 - n);
  if (lo == hi) {  // the rows do not exist or see no key
#pragma unroll 1
    for (int n = 0; n < count; ++n) {
      b.skip_v(n);
      if (n > 0) b.skip_k(count + n - 1);
    }
    return;
  }
  float s[A], base[2] = {-INFINITY, -INFINITY}, sum[2] = {}, inverse[2], offset[2];
  RowScores scores;
  const float c = sum_rows<SCORES>(b, s, base, sum, scores);
  if constexpr (SCORES) scores.write(b, base, sum);
#pragma unroll 1
  for (int n = lo - 1; n >= 0; --n) b.skip_k(count - 1 - n);
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    portable::finish_row_sum(b.p, b.t.head, base[h], sum[h]);
    const bool empty = b.keys(h).begin >= b.keys(h).end;
    r.lse[h] = empty ? -INFINITY : (base[h] + log2f(sum[h])) * kLn2;
    inverse[h] = empty ? 0 : 1 / sum[h];
    if (empty) base[h] = 0;
    offset[h] = portable::elastic_offset(b.p, b.keys(h), tau);
  }

  // The weights are computed from the base and the sum of exponentials, and not from the log-sum-exp, because its
  // absolute rounding error grows with the scores.
  WeightAccumulator<T, N, STATS> accumulator{r, tau};
  auto compute_weights = [&](float c, int tile) {
    accumulator.compute(s, inverse, offset, [&](float x, int h) { return exp2_fast(fmaf(x, c, -base[h])); });
    const bool edge = tile < b.bare.begin || tile >= b.bare.end;
    // Set the weights of masked keys to zero: with tau >= 0 they would otherwise be equal to the offset.
    if (tau >= 0 && edge) b.template hide<N>(s, b.origin + tile * N, 0);
  };
  uint32_t weights[N / 16][4], ones[ALIVE ? N / 16 : 1][4];
  auto pack = [&] {
    pack_weights<T, N>(weights, s);
    if constexpr (ALIVE) alive_ones<T, N>(ones, weights);
  };
  auto issue_sums = [&](int use) {
    b.wait_v(use);
    b.issue_sum(o, weights, use);
    if constexpr (ALIVE) b.issue_sum(alive, ones, use);
  };
#pragma unroll 1
  for (int n = 0; n < lo; ++n) {
    b.skip_v(n);
    if (n > 0) b.skip_k(count + n - 1);
  }
  if (lo > 0) b.skip_k(count + lo - 1);
  compute_weights(c, lo);
  if (lo == 0 && b.origin == 0) accumulator.take_first(b, s, inverse);
  pack();
  for (int n = lo + 1; n < hi; ++n) {
    b.issue_scores(s, count + n - 1);
    issue_sums(n - 1);
    accumulator.count(weights);
    wgmma_wait<ALIVE ? 2 : 1>();
    b.release_k(count + n - 1);
    compute_weights(b.finish_tile(s, n), n);
    wgmma_wait<0>();
    b.release_v(n - 1);
    pack();
  }
  issue_sums(hi - 1);
  accumulator.count(weights);
  wgmma_wait<0>();
  b.release_v(hi - 1);
#pragma unroll 1
  for (int n = hi; n < count; ++n) {
    b.skip_k(count + n - 1);
    b.skip_v(n);
  }
  accumulator.finish(b, o, base, inverse, offset);
}

}  // namespace lazy::kernels::cuda::hopper
