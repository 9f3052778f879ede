// First kernel of the portable backward, for problems that backward_sums.cuh does not support: computes the row states.
// A sweep over the keys of a row recomputes the scores and weights in fp32 and computes two values (weights.cuh): the
// center, (sum p g) / (sum p), which is subtracted from the gradients of the weights, and sum g, which is the gradient
// of the offset. The center could also be computed from the 16-bit output o as dO . o, but less precisely. The
// gradients of tau and of the distance bias, which are stored in fp32, would then be only as accurate as the output. If
// d_q must not be summed by atomics, a second sweep computes it.
#pragma once
#include "attention/cuda/portable_backward_lists.cuh"
#include "attention/cuda/portable_rows.cuh"

namespace lazy::kernels::cuda::portable {

template <int D>
struct BackwardRowsShape {
  static constexpr int MI = 1, warps = 4, threads = 128, M = 64, N = D == 256 ? 16 : 64, bias_entries = M + N;
};

template <typename T, int D, NormalizerFamily F, bool CAPPED>
__global__ void __launch_bounds__(128) backward_rows(const Params p, int tiles, int partial_step) {
  using S = BackwardRowsShape<D>;
  constexpr int N = S::N, NT = N / 16, M = S::M;
  extern __shared__ __align__(128) char memory[];
  __shared__ float warp_sums[2][S::warps];
  RowSweep<T, D, S, CAPPED> b{p, score_unit<F>(p)};
  Tile& t = b.t;
  if (!b.find(tiles)) return;
  // Whether the warp has work: with sparsemax and entmax-1.5, only if backward_lists has marked its rows.
  bool wanted = true;
  if constexpr (F == NormalizerFamily::threshold) {
    const bool first = b.row(0, 0) < t.q_length && is_marked(row_state(p, t, t.head, b.row(0, 0)));
    wanted = __any_sync(~0u, first);
    if (!__syncthreads_or(wanted)) return;
  }
  b.load(memory, M * D * 2);
  const int lane = b.lane;
  const uint32_t s_do = b.sq + M * D * 2;
  load_tile<T, M, D, S::threads>(s_do, static_cast<const T*>(p.d_out.data) + q_offset(p.d_out, t, t.head, t.first),
                                 p.d_out.token, t.q_length - t.first);
  const float tau = takes_tau(p.normalizer) ? p.tau[t.head] : 0;
  const float lowest = tau >= 0 ? -1 : 0;
  const bool squared = p.normalizer == Normalizer::entmax15;
  float anchor[2], offset[2], f_sum[2] = {}, fg_sum[2] = {}, g_sum[2] = {}, center[2], norm[2];
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    const float lse = b.row(0, h) < t.q_length ? row_anchor<F>(p, row_index(p, t, t.head, b.row(0, h))) : 0;
    anchor[h] = lse > -INFINITY ? lse : 0;
    offset[h] = row_offset<F>(p, b.keys[0][h], tau, anchor[h]);
  }
  // The weights of sigmoid are independent of each other, so the center of sigmoid is zero.
  if constexpr (F != NormalizerFamily::sigmoid)
    b.sweep(true, [&](int key, int stage) {
      if (!wanted) return;
      float s[1][2 * NT][4], g[1][2 * NT][4];
      const float c = b.scores(s, key, stage);
      clear(g);
      product_nt<T, D, 1, NT>(g, s_do, b.warp_row, b.sv + stage * N * D * 2);
      const bool full = tau < 0 || all_visible(p, t, t.first, M, key, N);
#pragma unroll
      for (int n = 0; n < 2 * NT; ++n) {
#pragma unroll
        for (int e = 0; e < 4; ++e) {
          const PairWeight x =
              pair_weight<F>(s[0][n][e] * c, fmaf(s[0][n][e], c, -anchor[e / 2]), 1, offset[e / 2], lowest, squared);
          const bool alive = x.alive && (full || s[0][n][e] > -INFINITY);
          const float dw = alive ? g[0][n][e] : 0;
          f_sum[e / 2] += norm_term<F>(x);
          fg_sum[e / 2] += center_term<F>(x) * dw;
          g_sum[e / 2] += dw;
        }
      }
    });
  float tau_sum = 0, sink_sum = 0;
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    const Keys& keys = b.keys[0][h];
    const bool empty = keys.begin >= keys.end;
    const float outside = empty ? 0 : outside_share<F>(p, t.head, anchor[h]);
    const float f_all = quad_sum(f_sum[h]), sum = f_all + outside, e = quad_sum(g_sum[h]);
    const float inverse = empty || sum == 0 ? 0 : 1 / sum;
    norm[h] = row_norm<F>(p, keys.end - keys.begin == 1, sum == f_all, inverse);
    center[h] = quad_sum(fg_sum[h]) * inverse;
    if (wanted && lane % 4 == 0 && b.row(0, h) < t.q_length) {
      const bool alone = F == NormalizerFamily::exponential && norm[h] == 0;
      row_state(p, t, t.head, b.row(0, h)) =
          make_float4(alone ? INFINITY : anchor[h], norm[h], center[h], offset[h] + static_cast<float>(alone));
      tau_sum += p.per_visible ? e / static_cast<float>(max(keys.end - keys.begin, 1)) : e;
      sink_sum -= outside * inverse * center[h];
    }
  }
  for (int d = 1; d < 32; d *= 2) {
    tau_sum += __shfl_xor_sync(~0u, tau_sum, d);
    sink_sum += __shfl_xor_sync(~0u, sink_sum, d);
  }
  if (lane == 0) {
    warp_sums[0][threadIdx.x / 32] = tau_sum;
    warp_sums[1][threadIdx.x / 32] = sink_sum;
  }
  __syncthreads();
  if (threadIdx.x < 2) {
    const float* w = warp_sums[threadIdx.x];
    p.partial[(static_cast<int64_t>(threadIdx.x) * p.heads + t.head) * partial_step + blockIdx.x] =
        (w[0] + w[1]) + (w[2] + w[3]);
  }
  if (!p.d_q.data || p.dq_sum) return;

  float d_q[1][D / 8][4];
  clear(d_q);
  b.sweep(true, [&](int key, int stage) {
    if (!wanted) return;
    float s[1][2 * NT][4], g[1][2 * NT][4];
    const float c = b.scores(s, key, stage);
    clear(g);
    product_nt<T, D, 1, NT>(g, s_do, b.warp_row, b.sv + stage * N * D * 2);
#pragma unroll
    for (int n = 0; n < 2 * NT; ++n) {
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        const PairWeight x = pair_weight<F>(s[0][n][e] * c, fmaf(s[0][n][e], c, -anchor[e / 2]), norm[e / 2],
                                            offset[e / 2], lowest, squared);
        s[0][n][e] = x.factor * ((x.alive ? g[0][n][e] : 0) - center[e / 2]);
      }
    }
    if constexpr (CAPPED) {
      clear(g);
      product_nt<T, D, 1, NT>(g, b.sq, b.warp_row, b.sk + stage * N * D * 2);
      uncap(p.softcap, g, s);
    }
    product_nn<T, D, 1, NT, D / 16>(d_q, s, b.sk + stage * N * D * 2, 0);
  });
  b.store(memory, p.d_q, d_q, p.scale, wanted);
}

}  // namespace lazy::kernels::cuda::portable
