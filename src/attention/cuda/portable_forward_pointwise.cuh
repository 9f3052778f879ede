// Forward on tensor cores for families whose weight is a function of the score and the row's statistics: sparsemax and
// entmax-1.5 after sweeps for the threshold, sigmoid at once.
#pragma once
#include "attention/cuda/portable_forward_rows.cuh"
#include "attention/cuda/portable_weights.cuh"

namespace lazy::kernels::cuda::portable {

// The threshold t of sparsemax and entmax-1.5 in the portable forward:  sum_j max(x_j - t, 0)^a = 1, a = 1 or 2, x
// relative to the row's largest score. Newton's method, a sweep over the keys a step: the left side is convex and
// falling, so from t = -1 the steps rise to the root and never pass it, but for rounding. Scores are computed again in
// every sweep, so memory stays linear.
template <int MI>
struct Threshold {
  float largest[MI][2], value[MI][2], low[MI][2];  // low: what `value` has below its last digit
};

template <typename T, int D, int MI = ForwardShape<D>::MI>
__device__ void find_threshold(RowSweep<T, D, ForwardShape<D>>& b, bool squared, Threshold<MI>& out) {
  constexpr int NT = ForwardShape<D>::N / 16, kMaxSteps = 64;
#pragma unroll
  for (int m = 0; m < MI; ++m) {
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      out.largest[m][h] = -INFINITY;
      out.value[m][h] = -1;
      out.low[m][h] = 0;
    }
  }
  b.sweep(false, [&](int key, int stage) {
    float s[MI][2 * NT][4];
    const float c = b.scores(s, key, stage);
#pragma unroll
    for (int m = 0; m < MI; ++m) {
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        float most = -INFINITY;
#pragma unroll
        for (int n = 0; n < 2 * NT; ++n) most = fmaxf(most, fmaxf(s[m][n][2 * h], s[m][n][2 * h + 1]));
        out.largest[m][h] = fmaxf(out.largest[m][h], most * c);
      }
    }
  });
#pragma unroll
  for (int m = 0; m < MI; ++m) {
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const float most = quad_max(out.largest[m][h]);
      out.largest[m][h] = most == -INFINITY ? 0 : most;  // sees nothing
    }
  }
  bool open = true;  // some row of the warp still moves
  for (int step = 0; step < kMaxSteps; ++step) {
    float slope[MI][2] = {}, sum[MI][2] = {};
    b.sweep(false, [&](int key, int stage) {
      if (!open) return;
      float s[MI][2 * NT][4];
      const float c = b.scores(s, key, stage);
#pragma unroll
      for (int m = 0; m < MI; ++m) {
#pragma unroll
        for (int n = 0; n < 2 * NT; ++n) {
#pragma unroll
          for (int e = 0; e < 4; ++e) {
            const float z = fmaxf(fmaf(s[m][n][e], c, -out.largest[m][e / 2]) - out.value[m][e / 2], 0);
            const float x = squared ? z : z > 0 ? 1.0f : 0.0f;
            slope[m][e / 2] += x;
            sum[m][e / 2] += x * z;
          }
        }
      }
    });
    bool moved = false;
#pragma unroll
    for (int m = 0; m < MI; ++m) {
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        const float falls = quad_sum(slope[m][h]) * (squared ? 2 : 1), all = quad_sum(sum[m][h]);
        if (!open || falls == 0) continue;
        // As a step from where we are: the sum is near one, not near the scores.
        const float by = (all - 1) / falls, next = out.value[m][h] + by;
        out.low[m][h] = next > out.value[m][h] ? 0 : by;
        moved |= next > out.value[m][h];
        out.value[m][h] = fmaxf(next, out.value[m][h]);
      }
    }
    open = __any_sync(~0u, moved);
    if (!__syncthreads_or(open)) break;
  }
}

template <typename T, int D, NormalizerFamily F>
__global__ void __launch_bounds__(ForwardShape<D>::threads) forward_pointwise(const Params p, int tiles) {
  using S = ForwardShape<D>;
  constexpr int MI = S::MI, N = S::N, NT = N / 16;
  extern __shared__ __align__(128) char memory[];
  RowSweep<T, D, S> b{p, score_unit<F>(p)};
  if (!b.start(memory, 0, tiles)) return;
  const bool squared = p.normalizer == Normalizer::entmax15;
  Threshold<MI> threshold{};
  if constexpr (F == NormalizerFamily::threshold) find_threshold(b, squared, threshold);
  float o[MI][D / 8][4], total[MI][2] = {}, alive[MI][2] = {}, first[MI][2] = {}, lse[MI][2], offset[MI][2];
  clear(o);
#pragma unroll
  for (int m = 0; m < MI; ++m) {
#pragma unroll
    for (int h = 0; h < 2; ++h) offset[m][h] = family_offset<F>(p, b.keys[m][h], 0);
  }
  b.sweep(true, [&](int key, int stage) {
    float s[MI][2 * NT][4];
    const float c = b.scores(s, key, stage);
#pragma unroll
    for (int m = 0; m < MI; ++m) {
#pragma unroll
      for (int n = 0; n < 2 * NT; ++n) {
#pragma unroll
        for (int e = 0; e < 4; ++e) {
          const int h = e / 2;
          const float d = (fmaf(s[m][n][e], c, -threshold.largest[m][h]) - threshold.value[m][h]) - threshold.low[m][h];
          const PairWeight x = pair_weight<F>(d, 1, offset[m][h], 0, squared);
          if (p.stats) {
            alive[m][h] += x.alive && s[m][n][e] != -INFINITY ? 1.0f : 0.0f;
            total[m][h] += x.weight;
          }
          s[m][n][e] = x.weight;
        }
      }
      if (key == 0 && b.lane % 4 == 0) {
        first[m][0] = s[m][0][0];
        first[m][1] = s[m][0][2];
      }
    }
    product_nn<T, D, MI, NT, D / 16>(o, s, b.sv + stage * N * D * 2, 0);
  });
#pragma unroll
  for (int m = 0; m < MI; ++m) {
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const bool empty = b.keys[m][h].begin >= b.keys[m][h].end;
      lse[m][h] = F == NormalizerFamily::sigmoid ? 0
                  : empty                        ? -INFINITY
                          : threshold.largest[m][h] + (threshold.value[m][h] + threshold.low[m][h]);
    }
  }
  finish_rows(b, memory, o, lse, first, total, alive);
}

}  // namespace lazy::kernels::cuda::portable
