// Elastic's two sweeps. The first, from the diagonal back, takes scores for the row's sum; the second, the other way,
// takes them again for weights = max(p + offset, 0) and their sum over V. Three products and two exponentials a pair,
// where softmax attention needs two and one; where the sweeps meet, a tile's scores serve both.
#pragma once
#include "attention/cuda/hopper_forward_consumer.cuh"

namespace lazy::kernels::cuda::hopper {

// Adds exp2(s c - base) to the thread's sums. Any base near the row's largest score will do, fp32 has room: the first
// tile's maximum is kept until a sum leaves the range. Eight sums side by side: a chain of dependent additions is what
// a warp would wait for.
template <int A>
__device__ void add_row_sums(const float (&s)[A], float c, float (&base)[2], float (&sum)[2]) {
  float part[2][4] = {};
#pragma unroll
  for (int n = 0; n < A; n += 8) {
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      const int h = i / 2 % 2;
      part[h][i / 4 * 2 + i % 2] += exp2_fast(fmaf(s[n + i], c, -base[h]));
    }
  }
  float all[2];
#pragma unroll
  for (int h = 0; h < 2; ++h) all[h] = (part[h][0] + part[h][1]) + (part[h][2] + part[h][3]);
  if (all[0] < 0x1p60f && all[1] < 0x1p60f) {  // false for the first tile, with base -inf, and for a NaN
    sum[0] += all[0];
    sum[1] += all[1];
    return;
  }
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    float most = -INFINITY;
#pragma unroll
    for (int n = 0; n < A; n += 4) most = fmaxf(most, fmaxf(s[n + 2 * h], s[n + 2 * h + 1]));
    most = fmaxf(most * c, base[h]);
    const float from = most > -INFINITY ? most : 0;
    sum[h] *= exp2_fast(base[h] - from);
#pragma unroll
    for (int n = 0; n < A; n += 4) {
      sum[h] += exp2_fast(fmaf(s[n + 2 * h], c, -from)) + exp2_fast(fmaf(s[n + 2 * h + 1], c, -from));
    }
    base[h] = most;
  }
}

// The thread's own base and sum of a row become the row's: four neighbouring lanes share it.
__device__ inline void merge_row_sums(float& base, float& sum) {
#pragma unroll
  for (int d = 1; d < 4; d *= 2) {
    const float other = __shfl_xor_sync(~0u, base, d), other_sum = __shfl_xor_sync(~0u, sum, d);
    const float m = fmaxf(base, other);
    if (m > -INFINITY) sum = sum * exp2_fast(base - m) + other_sum * exp2_fast(other - m);
    base = m;
  }
}

// The first sweep over the rows' own tiles, last to first. Scores of the first tile stay in s; returns their factor.
template <typename T, int D>
__device__ float sum_rows(Consumer<T, D>& b, float (&s)[Consumer<T, D>::A], float (&base)[2], float (&sum)[2]) {
  const int lo = b.tiles.begin, last = b.tiles.end - 1 - lo;
  auto use = [&](int n) { return b.count - 1 - (lo + n); };  // the n-th of the rows' own tiles
  auto add = [&](float(&x)[Consumer<T, D>::A], int n) {
    const float c = b.finish_tile(x, lo + n);
    add_row_sums(x, c, base, sum);
    return c;
  };
  auto wait = [&](int n) {
    wgmma_wait<0>();
    b.release_k(use(n));
  };
  float y[Consumer<T, D>::A];  // even tiles in s, odd ones in y
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

// x y + z, clamped to [0, 1] by the instruction itself. A NaN becomes zero.
__device__ inline float fma_clamped(float x, float y, float z) {
  float r;
  asm("fma.rn.sat.f32 %0, %1, %2, %3;" : "=f"(r) : "f"(x), "f"(y), "f"(z));
  return r;
}

// Statistics of a thread's share of a tile: sums of its weights, and how many are not zero.
struct TileStatistics {
  float total[2][2] = {};
  uint32_t alive[2] = {};  // two counts of 16 bits

  // Two weights of bf16, which never rounds a weight to zero.
  __device__ void count(int h, uint32_t two) {
    uint32_t ones;
    asm volatile("min.u16x2 %0, %1, %2;" : "=r"(ones) : "r"(two), "r"(0x00010001));
    alive[h] += ones;
  }
  template <typename T, int N>
  __device__ void count(const uint32_t (&weights)[N / 16][4]) {
    if constexpr (std::is_same_v<T, __nv_bfloat16>) {
#pragma unroll
      for (int k = 0; k < N / 16; ++k) {
#pragma unroll
        for (int n = 0; n < 4; ++n) count(n % 2, weights[k][n]);
      }
    }
  }
  __device__ void finish_total(RowResults& r) {
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      cuda::settle(total[h]);  // the compiler would make these sums after the loop
      r.total[h] += total[h][0] + total[h][1];
    }
  }
  __device__ void finish_count(RowResults& r) const {
#pragma unroll
    for (int h = 0; h < 2; ++h)
      r.alive[h] = static_cast<int>(__dp2a_lo(alive[h], 0x0101u, static_cast<uint32_t>(r.alive[h])));
  }
};

template <typename T, int D, bool STATS>
__device__ void elastic_rows(Consumer<T, D>& b, float (&o)[D / 2], RowResults& r) {
  constexpr int N = Consumer<T, D>::N, A = Consumer<T, D>::A;
  const float tau = b.p.tau[b.t.head];
  const int lo = b.tiles.begin, hi = b.tiles.end, tiles = b.count;
#pragma unroll 1
  for (int n = tiles - 1; n >= hi; --n) b.skip_k(tiles - 1 - n);
  if (lo == hi) {  // rows past the end, or without keys
#pragma unroll 1
    for (int n = 0; n < tiles; ++n) {
      b.skip_v(n);
      if (n > 0) b.skip_k(tiles + n - 1);
    }
    return;
  }
  float s[A], base[2] = {-INFINITY, -INFINITY}, sum[2] = {}, inverse[2], offset[2];
  const float c = sum_rows(b, s, base, sum);
#pragma unroll 1
  for (int n = lo - 1; n >= 0; --n) b.skip_k(tiles - 1 - n);
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    merge_row_sums(base[h], sum[h]);
    const bool empty = b.keys(h).begin >= b.keys(h).end;
    r.lse[h] = empty ? -INFINITY : (base[h] + log2f(sum[h])) * kLn2;
    inverse[h] = empty ? 0 : 1 / sum[h];
    if (empty) base[h] = 0;
    offset[h] = portable::row_offset(b.p, b.keys(h), tau);
  }

  // Weights come from the base and the sum: where scores are large, lse has lost digits that they have. Their sum is
  // taken in the same loop: there it fits between the exponentials. Below zero, tau leaves no weight above one.
  constexpr bool COUNTS_PACKED = std::is_same_v<T, __nv_bfloat16>;
  const bool summed = STATS && tau < 0;
  auto weigh = [&](float c, int tile) {
    if (STATS && summed) {
      TileStatistics tile_sums;
#pragma unroll
      for (int n = 0; n < A; n += 2) {
        const int h = n / 2 % 2;
        s[n] = fma_clamped(exp2_fast(fmaf(s[n], c, -base[h])), inverse[h], offset[h]);
        s[n + 1] = fma_clamped(exp2_fast(fmaf(s[n + 1], c, -base[h])), inverse[h], offset[h]);
        tile_sums.total[h][0] += s[n];
        tile_sums.total[h][1] += s[n + 1];
        if constexpr (!COUNTS_PACKED) tile_sums.count(h, pack<__nv_bfloat16>(s[n], s[n + 1]));
      }
      tile_sums.finish_total(r);
      if constexpr (!COUNTS_PACKED) tile_sums.finish_count(r);
      return;
    }
#pragma unroll
    for (int n = 0; n < A; ++n) {
      const int h = n / 2 % 2;
      s[n] = fmaf(exp2_fast(fmaf(s[n], c, -base[h])), inverse[h], offset[h]);
    }
    const bool edge = tile < b.bare.begin || tile >= b.bare.end;
    if (tau >= 0 && edge) b.template hide<N>(s, b.origin + tile * N, 0);  // the offset would show at hidden keys
  };
  // Alive pairs of the tile whose product has been issued: they are counted while it, and the next scores, are under
  // way.
  auto count = [&](const uint32_t(&weights)[N / 16][4]) {
    if constexpr (STATS && COUNTS_PACKED) {
      TileStatistics tile_counts;
      tile_counts.template count<T, N>(weights);
      tile_counts.finish_count(r);
    }
  };
  uint32_t weights[N / 16][4];
#pragma unroll 1
  for (int n = 0; n < lo; ++n) {
    b.skip_v(n);
    if (n > 0) b.skip_k(tiles + n - 1);
  }
  if (lo > 0) b.skip_k(tiles + lo - 1);
  weigh(c, lo);
  if (STATS && lo == 0 && b.origin == 0 && b.lane % 4 == 0) {
    r.head[0] = fmaf(inverse[0], 0, s[0]);  // NaN where the row's weights are
    r.head[1] = fmaf(inverse[1], 0, s[2]);
  }
  pack_weights<T, N>(weights, s);
  for (int n = lo + 1; n < hi; ++n) {
    b.issue_scores(s, tiles + n - 1);
    b.issue_sum(o, weights, n - 1);
    count(weights);
    wgmma_wait<1>();
    b.release_k(tiles + n - 1);
    weigh(b.finish_tile(s, n), n);
    wgmma_wait<0>();
    b.release_v(n - 1);
    pack_weights<T, N>(weights, s);
  }
  b.issue_sum(o, weights, hi - 1);
  count(weights);
  wgmma_wait<0>();
  b.release_v(hi - 1);
#pragma unroll 1
  for (int n = hi; n < tiles; ++n) {
    b.skip_k(tiles + n - 1);
    b.skip_v(n);
  }
  if constexpr (STATS) {
    if (summed) {  // the clamp has made zeros of a row's NaNs
#pragma unroll
      for (int n = 0; n < D / 2; ++n) o[n] = fmaf(inverse[n / 2 % 2], 0, o[n]);
    }
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      if (summed) {
        r.total[h] = fmaf(inverse[h], 0, r.total[h]);
      } else {  // every visible pair is alive; one lane of a row tells
        const Keys keys = b.keys(h);
        const int visible = b.lane % 4 == 0 ? max(keys.end - keys.begin, 0) : 0;
        r.alive[h] = visible;
        r.total[h] = visible > 0 ? fmaf(static_cast<float>(visible), offset[h], fmaf(inverse[h], 0, 1)) : 0;
      }
    }
  }
}

}  // namespace lazy::kernels::cuda::hopper
