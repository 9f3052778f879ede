// Portable forward for the normalizer families in which a weight depends only on the score and on statistics of the
// row. Sweeps over the keys compute the statistics, and one more sweep computes the weights and the weighted sum of V.
#pragma once
#include "attention/cuda/portable_forward_rows.cuh"
#include "attention/cuda/portable_normalizers.cuh"

namespace lazy::kernels::cuda::portable {

// Statistics of a thread's rows. A weight is a function of (score - largest - value - low) and of `norm`. `largest` is
// the largest score. `value` is the threshold relative to the largest score (sparsemax, entmax15), otherwise 0. `lse`
// is the statistic that the forward stores in Params::lse.
template <int MI>
struct RowStatistics {
  float largest[MI][2], value[MI][2], low[MI][2];  // low: low-order part of `value`
  float norm[MI][2], lse[MI][2];
};

// Computes out, lse and stats of rows whose RowStatistics are known, in one sweep over the keys. wanted: whether to
// process the warp's rows.
template <NormalizerFamily F, typename T, int D, typename S>
__device__ void compute_rows(RowSweep<T, D, S>& b, char* memory, bool squared, const RowStatistics<S::MI>& statistics,
                             bool wanted = true) {
  constexpr int MI = S::MI, N = S::N, NT = N / 16;
  const Params& p = b.p;
  float o[MI][D / 8][4], total[MI][2] = {}, alive[MI][2] = {}, first[MI][2] = {}, lse[MI][2], offset[MI][2];
  clear(o);
#pragma unroll
  for (int m = 0; m < MI; ++m) {
#pragma unroll
    for (int h = 0; h < 2; ++h) offset[m][h] = row_offset<F>(p, b.keys[m][h], 0, statistics.largest[m][h]);
  }
  b.sweep(true, [&](int key, int stage) {
    if (!wanted) return;
    float s[MI][2 * NT][4];
    const float c = b.scores(s, key, stage);
#pragma unroll
    for (int m = 0; m < MI; ++m) {
#pragma unroll
      for (int n = 0; n < 2 * NT; ++n) {
#pragma unroll
        for (int e = 0; e < 4; ++e) {
          const int h = e / 2;
          const float d =
              (fmaf(s[m][n][e], c, -statistics.largest[m][h]) - statistics.value[m][h]) - statistics.low[m][h];
          const PairWeight x = pair_weight<F>(s[m][n][e] * c, d, statistics.norm[m][h], offset[m][h], 0, squared);
          if (p.stats) {
            alive[m][h] += x.alive && s[m][n][e] != -INFINITY ? 1.0f : 0.0f;
            total[m][h] += final_weight<F>(x);
          }
          s[m][n][e] = final_weight<F>(x);
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
      lse[m][h] = F == NormalizerFamily::sigmoid ? 0 : empty ? -INFINITY : statistics.lse[m][h];
    }
  }
  b.store(memory, p.out, o, 1, wanted);
  if (wanted) finish_statistics(b, lse, first, total, alive);
}

// Computes the row statistics of softpick in one sweep over the keys: m = max(largest score, 0), and the sum of
// |exp(s - m) - exp(-m)|.
template <typename T, int D, typename S>
__device__ void find_rectified_sum(RowSweep<T, D, S>& b, RowStatistics<S::MI>& out) {
  constexpr int MI = S::MI, NT = S::N / 16;
  float sum[MI][2] = {};
#pragma unroll
  for (int m = 0; m < MI; ++m) out.largest[m][0] = out.largest[m][1] = 0;
  b.sweep(false, [&](int key, int stage) {
    float s[MI][2 * NT][4];
    const float c = b.scores(s, key, stage);
#pragma unroll
    for (int m = 0; m < MI; ++m) {
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        const float base = fmaxf(largest_of<2 * NT>(s[m], h) * c, out.largest[m][h]), unit = exp2_fast(-base);
        float part = 0;
#pragma unroll
        for (int n = 0; n < 2 * NT; ++n) {
#pragma unroll
          for (int e = 2 * h; e < 2 * h + 2; ++e) {
            const float excess = rectified_excess(s[m][n][e] * c, fmaf(s[m][n][e], c, -base), unit);
            part += s[m][n][e] == -INFINITY ? 0 : fabsf(excess);
          }
        }
        sum[m][h] = sum[m][h] * exp2_fast(out.largest[m][h] - base) + part;
        out.largest[m][h] = base;
      }
    }
  });
#pragma unroll
  for (int m = 0; m < MI; ++m) {
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const float base = quad_max(out.largest[m][h]);
      const float all =
          quad_sum(sum[m][h] * exp2_fast(out.largest[m][h] - base)) + static_cast<float>(kSoftpickEpsilon);
      out.largest[m][h] = base;
      out.norm[m][h] = 1 / all;
      out.lse[m][h] = (base + log2f(all)) * kLn2;
    }
  }
}

template <typename T, int D, NormalizerFamily F>
__global__ void __launch_bounds__(ForwardShape<D>::threads) forward_pointwise(const Params p, int tiles) {
  using S = ForwardShape<D>;
  extern __shared__ __align__(128) char memory[];
  RowSweep<T, D, S> b{p, score_unit<F>(p)};
  if (!b.start(memory, 0, tiles)) return;
  RowStatistics<S::MI> statistics{};
  if constexpr (F == NormalizerFamily::rectified) {
    find_rectified_sum(b, statistics);
  } else {
#pragma unroll
    for (int m = 0; m < S::MI; ++m) statistics.norm[m][0] = statistics.norm[m][1] = 1;
  }
  compute_rows<F>(b, memory, false, statistics);
}

}  // namespace lazy::kernels::cuda::portable
