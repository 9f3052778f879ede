// Forward on tensor cores. A warp processes 16 MI rows. cp.async loads tiles of N keys into two alternating buffers.
// softmax and softmax_sink need one sweep over the keys with a running maximum. elastic and elastic_sink need two
// sweeps: the first computes the maximum and the sum of exponentials, which determine the weights that are zero, and
// the second computes the weights, their statistics, the output, and alive_sum if requested. The forward for sigmoid
// and softpick is in portable_forward_pointwise.cuh, the forward for sparsemax and entmax-1.5 in
// portable_forward_threshold.cuh.
#include "attention/cuda/launchers.h"
#include "attention/cuda/portable_forward_pointwise.cuh"
#include "attention/cuda/portable_forward_threshold.cuh"

namespace lazy::kernels::cuda {

namespace portable {

// Forward kernel for the exponential family. ELASTIC: the normalizer takes tau. SCORES: also writes
// Params::score_stats, using the maximum, the exponentials and their sum, which the kernel computes in any case. ALIVE:
// also computes alive_sum, the sum of the rows of V with nonzero weight. CAPPED: the problem has a softcap.
template <typename T, int D, bool ELASTIC, bool ALIVE, bool SCORES, bool CAPPED = false>
__global__ void __launch_bounds__(ForwardShape<D, ALIVE>::threads) forward(const Params p, int tiles) {
  using S = ForwardShape<D, ALIVE>;
  constexpr int MI = S::MI, N = S::N, NT = N / 16;
  extern __shared__ __align__(128) char memory[];
  RowSweep<T, D, S, CAPPED> b{p, score_unit<NormalizerFamily::exponential>(p)};
  Tile& t = b.t;
  if (!b.start(memory, 0, tiles)) return;
  const int lane = b.lane;
  const bool has_sink = !ELASTIC && takes_sink(p.normalizer);  // elastic_sink adds the sink after the first sweep
  const float sink = has_sink ? scaled_sink(p, t.head) : -INFINITY;
  float largest[MI][2], sum[MI][2];
#pragma unroll
  for (int m = 0; m < MI; ++m) {
#pragma unroll
    for (int h = 0; h < 2; ++h) {  // only one of the four lanes that share a row adds the sink's term
      largest[m][h] = lane % 4 == 0 ? sink : -INFINITY;
      sum[m][h] = has_sink && lane % 4 == 0 ? 1 : 0;
    }
  }

  float o[MI * (1 + ALIVE)][D / 8][4];  // weighted sums of V, followed by alive_sum if ALIVE
  float total[MI][2] = {}, alive[MI][2] = {}, first[MI][2] = {};
  clear(o);
  float lse2[MI][2], offset[MI][2];
  float weighted[MI][2] = {};  // ScoreSums::weighted, from which the entropy of the scores is computed
  auto scores = [&](int m, int h) { return LaneScores{largest[m][h], sum[m][h], weighted[m][h]}; };
  if constexpr (ELASTIC) {
    b.sweep(false, [&](int key, int stage) {
      float s[MI][2 * NT][4];
      const float c = b.scores(s, key, stage);
#pragma unroll
      for (int m = 0; m < MI; ++m) {
#pragma unroll
        for (int h = 0; h < 2; ++h) {
          float most = largest_of<2 * NT>(s[m], h);
          most = fmaxf(most * c, largest[m][h]);
          const float base = most > -INFINITY ? most : 0, shift = largest[m][h] - base, shrink = exp2_fast(shift);
          if constexpr (SCORES) weighted[m][h] = LaneScores::shrunk(weighted[m][h], sum[m][h], shift, shrink);
          float part = 0, added = 0;
#pragma unroll
          for (int n = 0; n < 2 * NT; ++n) {
            const float x = fmaf(s[m][n][2 * h], c, -base), y = fmaf(s[m][n][2 * h + 1], c, -base);
            const float e = exp2_fast(x), f = exp2_fast(y);
            part += e + f;
            if constexpr (SCORES) added = LaneScores::added(LaneScores::added(added, e, x), f, y);
          }
          sum[m][h] = sum[m][h] * shrink + part;
          largest[m][h] = most;
          if constexpr (SCORES) weighted[m][h] += added;
        }
      }
    });
    if constexpr (SCORES) store_score_statistics(b, scores);
    const float tau = p.tau[t.head];
    // A weight is nonzero if p + offset > lowest. With tau >= 0, this is true for every visible key.
    const float lowest = tau >= 0 ? -1 : 0;
#pragma unroll
    for (int m = 0; m < MI; ++m) {
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        finish_row_sum(p, t.head, largest[m][h], sum[m][h]);
        lse2[m][h] = largest[m][h] + log2f(sum[m][h]);
        // The weights are computed from the maximum and the sum of exponentials, and not from lse, because the absolute
        // rounding error of lse grows with the scores.
        sum[m][h] = 1 / sum[m][h];
        if (b.keys[m][h].begin >= b.keys[m][h].end) {
          lse2[m][h] = -INFINITY;
          largest[m][h] = sum[m][h] = 0;
        }
        offset[m][h] = elastic_offset(p, b.keys[m][h], tau);
      }
    }
    b.sweep(true, [&](int key, int stage) {
      float s[MI][2 * NT][4];
      const float c = b.scores(s, key, stage);
      // The weights, the statistics and the mask of nonzero weights are computed in separate loops, because the
      // bottleneck is the throughput of exponentials and masks, not the throughput of the matrix products.
      auto compute_weights = [&](auto hidden) {
#pragma unroll
        for (int m = 0; m < MI; ++m) {
#pragma unroll
          for (int n = 0; n < 2 * NT; ++n) {
#pragma unroll
            for (int e = 0; e < 4; ++e) {
              const float x = s[m][n][e], f = exp2_fast(fmaf(x, c, -largest[m][e / 2]));
              const float z = fmaf(f, sum[m][e / 2], offset[m][e / 2]);
              s[m][n][e] = hidden(x) ? -INFINITY : z;
            }
          }
        }
      };
      if (tau >= 0) {  // the offset is then not negative, so masked keys would get the offset as their weight
        compute_weights([](float x) { return x == -INFINITY; });
      } else {
        compute_weights([](float) { return false; });
      }
      if (p.stats) {
#pragma unroll
        for (int m = 0; m < MI; ++m) {
#pragma unroll
          for (int n = 0; n < 2 * NT; ++n) {
#pragma unroll
            for (int e = 0; e < 4; ++e) {
              alive[m][e / 2] += s[m][n][e] > lowest ? 1.0f : 0.0f;
              total[m][e / 2] += positive(s[m][n][e]);
            }
          }
          if (key == 0 && lane % 4 == 0) {
            first[m][0] = positive(s[m][0][0]);
            first[m][1] = positive(s[m][0][2]);
          }
        }
      }
      // Left operands of the products: first the weights, then (if ALIVE) 1 for nonzero weights and 0 for zero weights.
      uint32_t left[2 * MI][NT][4];
      if constexpr (ALIVE) {
#pragma unroll
        for (int m = 0; m < MI; ++m) {
#pragma unroll
          for (int n = 0; n < 4 * NT; ++n) {
            const float* x = s[m][n / 2] + n % 2 * 2;
            left[MI + m][n / 4][n % 4] = pack<T>(x[0] > lowest ? 1.0f : 0.0f, x[1] > lowest ? 1.0f : 0.0f);
          }
        }
      }
#pragma unroll
      for (int m = 0; m < MI; ++m) {
#pragma unroll
        for (int n = 0; n < 2 * NT; ++n) {
#pragma unroll
          for (int e = 0; e < 4; ++e) s[m][n][e] = positive(s[m][n][e]);
        }
      }
      if constexpr (ALIVE) {
#pragma unroll
        for (int m = 0; m < MI; ++m) {
#pragma unroll
          for (int k = 0; k < NT; ++k) as_left<T>(left[m][k], s[m], k);
        }
        product_nn<T, D, 2 * MI, NT, D / 16>(o, left, b.sv + stage * N * D * 2, 0);
      } else {
        product_nn<T, D, MI, NT, D / 16>(o, s, b.sv + stage * N * D * 2, 0);
      }
    });
  } else {
    float first_score[MI][2];
#pragma unroll
    for (int m = 0; m < MI; ++m) first_score[m][0] = first_score[m][1] = -INFINITY;
    b.sweep(true, [&](int key, int stage) {
      float s[MI][2 * NT][4];
      const float c = b.scores(s, key, stage);
#pragma unroll
      for (int m = 0; m < MI; ++m) {
        if (key == 0 && lane % 4 == 0) {
          first_score[m][0] = s[m][0][0] * c;
          first_score[m][1] = s[m][0][2] * c;
        }
#pragma unroll
        for (int h = 0; h < 2; ++h) {
          float most = largest_of<2 * NT>(s[m], h);
          most = quad_max(fmaxf(most * c, largest[m][h]));
          const float base = most > -INFINITY ? most : 0;
          const float shift = largest[m][h] - base, shrink = exp2_fast(shift);
          largest[m][h] = most;
          if constexpr (SCORES) weighted[m][h] = LaneScores::shrunk(weighted[m][h], sum[m][h], shift, shrink);
          float part = 0, added = 0;
#pragma unroll
          for (int n = 0; n < 2 * NT; ++n) {
#pragma unroll
            for (int e = 2 * h; e < 2 * h + 2; ++e) {
              const float x = fmaf(s[m][n][e], c, -base);
              s[m][n][e] = exp2_fast(x);
              part += s[m][n][e];
              if constexpr (SCORES) added = LaneScores::added(added, s[m][n][e], x);
            }
          }
          sum[m][h] = sum[m][h] * shrink + part;
          if constexpr (SCORES) weighted[m][h] += added;
#pragma unroll
          for (int n = 0; n < D / 8; ++n) {
            o[m][n][2 * h] *= shrink;
            o[m][n][2 * h + 1] *= shrink;
          }
        }
      }
      product_nn<T, D, MI, NT, D / 16>(o, s, b.sv + stage * N * D * 2, 0);
    });
    if constexpr (SCORES) store_score_statistics(b, scores);
#pragma unroll
    for (int m = 0; m < MI; ++m) {
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        const bool empty = b.keys[m][h].begin >= b.keys[m][h].end;
        const float all = quad_sum(sum[m][h]);
        const float inverse = empty ? 0 : 1 / all;
        lse2[m][h] = empty ? -INFINITY : largest[m][h] + log2f(all);
        offset[m][h] = 0;
#pragma unroll
        for (int n = 0; n < D / 8; ++n) {
          o[m][n][2 * h] *= inverse;
          o[m][n][2 * h + 1] *= inverse;
        }
        if (lane % 4 == 0 && !empty) {
          first[m][h] = exp2_fast(first_score[m][h] - largest[m][h]) * inverse;
          total[m][h] = 1 - exp2_fast(sink - largest[m][h]) * inverse;
          alive[m][h] = static_cast<float>(b.keys[m][h].end - b.keys[m][h].begin);
        }
      }
    }
  }

#pragma unroll
  for (int m = 0; m < MI; ++m) {
#pragma unroll
    for (int h = 0; h < 2; ++h) lse2[m][h] *= kLn2;
  }
  b.store(memory, p.out, o, 1);
  if constexpr (ALIVE) {
    __syncwarp();  // no barrier of the block is needed, because each warp uses only its own part of the shared memory
    b.template store<MI>(memory, p.alive_sum, o, 1);
  }
  finish_statistics(b, lse2, first, total, alive);
}

template <typename T, int D, bool SCORES>
void launch_exponential(const Params& p, cudaStream_t stream) {
  if constexpr (D <= kMaxAliveSumHead) {
    if (p.alive_sum.data && writes_alive_sum(p)) {
      using S = ForwardShape<D, true>;
      return launch_rows<S>(forward<T, D, true, true, SCORES>, RowSweep<T, D, S>::bytes, p, stream);
    }
  }
  using S = ForwardShape<D>;
  launch_rows<S>(takes_tau(p.normalizer) ? forward<T, D, true, false, SCORES> : forward<T, D, false, false, SCORES>,
                 RowSweep<T, D, S>::bytes, p, stream);
}

template <NormalizerFamily F, int D>
struct PortableForward {
  static void launch(const Params& p, cudaStream_t stream) {
    with_half_type<__nv_bfloat16, __half>(p.dtype, [&](auto type) {
      using T = decltype(type);
      if constexpr (F == NormalizerFamily::threshold) {
        launch_rows<ListShape<D>>(forward_lists<T, D>, ListShape<D>::bytes, p, stream);
        launch_rows<SweepShape<D>>(forward_sweeps<T, D>, RowSweep<T, D, SweepShape<D>>::bytes, p, stream);
      } else if constexpr (F == NormalizerFamily::exponential) {
        if (p.softcap) {
          using S = ForwardShape<D>;
          launch_rows<S>(takes_tau(p.normalizer) ? forward<T, D, true, false, false, true>
                                                 : forward<T, D, false, false, false, true>,
                         RowSweep<T, D, S>::bytes, p, stream);
        } else if (p.score_stats) {
          launch_exponential<T, D, true>(p, stream);
        } else {
          launch_exponential<T, D, false>(p, stream);
        }
      } else {
        using S = ForwardShape<D>;
        launch_rows<S>(forward_pointwise<T, D, F>, RowSweep<T, D, S>::bytes, p, stream);
      }
    });
  }
};

}  // namespace portable

ForwardLauncher portable_forward(NormalizerFamily family, int64_t head_size) {
  return find_launcher<CudaKernel::portable, ForwardLauncher, portable::PortableForward>(family, head_size);
}

}  // namespace lazy::kernels::cuda
