// Forward on tensor cores where a weight is a function of a score and one number of its row: sparsemax and entmax-1.5
// after sweeps for the threshold, sigmoid at once.
#pragma once
#include "attention/cuda/portable_forms.cuh"
#include "attention/cuda/portable_threshold.cuh"

namespace lazy::kernels::cuda::portable {

template <typename T, int D, Form F>
__global__ void __launch_bounds__(ForwardShape<D>::threads) forward_scored(const Params p, int tiles) {
  using S = ForwardShape<D>;
  constexpr int MI = S::MI, N = S::N, NT = N / 16;
  extern __shared__ __align__(128) char memory[];
  RowSweep<T, D, S> b{p, score_unit<F>(p)};
  if (!b.start(memory, 0, tiles)) return;
  const bool squared = p.normalizer == Normalizer::entmax15;
  Threshold<MI> threshold{};
  if constexpr (F == Form::sparse) find_threshold(b, squared, threshold);
  float o[MI][D / 8][4], total[MI][2] = {}, alive[MI][2] = {}, first[MI][2] = {}, lse[MI][2], offset[MI][2];
  clear(o);
#pragma unroll
  for (int m = 0; m < MI; ++m) {
#pragma unroll
    for (int h = 0; h < 2; ++h) offset[m][h] = form_offset<F>(p, b.keys[m][h], 0);
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
          const Pair x = make_pair<F>(d, 1, offset[m][h], 0, squared);
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
      lse[m][h] = F == Form::sigmoid ? 0
                  : empty            ? -INFINITY
                                     : threshold.largest[m][h] + (threshold.value[m][h] + threshold.low[m][h]);
    }
  }
  finish_rows(b, memory, o, lse, first, total, alive);
}

template <int D>
void run_forward_scored(const Params& p, cudaStream_t stream) {
  const bool sigmoid = p.normalizer == Normalizer::sigmoid;
  if (p.dtype == DType::bf16) {
    launch_rows<__nv_bfloat16, D>(
        sigmoid ? forward_scored<__nv_bfloat16, D, Form::sigmoid> : forward_scored<__nv_bfloat16, D, Form::sparse>, p,
        stream);
  } else {
    launch_rows<__half, D>(sigmoid ? forward_scored<__half, D, Form::sigmoid> : forward_scored<__half, D, Form::sparse>,
                           p, stream);
  }
}

}  // namespace lazy::kernels::cuda::portable
