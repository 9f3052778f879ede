// First kernel of the Hopper backward: as portable_backward_rows.cuh, a sweep rebuilds a row's weights and sums what its
// gradient needs. What the second kernel wants of a row is written as four floats that it can copy as they are. Softmax is
// elastic with an offset of zero; it comes here where gradients in fp32 are asked for (bias, sink).
#pragma once
#include "attention/cuda/hopper_rows.cuh"

namespace lazy::kernels::cuda::hopper {

struct BackwardMaps {
  CUtensorMap q, d_out, k, v;               // boxes of 64 rows (q, d_out) and 128 keys (k, v)
};

template <int D>
struct BackwardRowsShape {
  static constexpr int consumers = 2, M = 64 * consumers, N = 128, halves = D / 64, threads = 128 * (consumers + 1);
  static constexpr int stages = D == 64 ? 3 : 2;   // each a tile of keys and one of values
  static constexpr int q_bytes = M * D * 2, tile_bytes = N * D * 2, pad = M + N;
  static constexpr int bytes = 2 * q_bytes + 2 * stages * tile_bytes + 1024;
  static constexpr int table(int bias_window) { return bias_window > 0 ? bias_window + 2 * pad : 0; }
};

template <int D>
struct BackwardRowsShared {
  uint64_t rows_full;
  Ring<BackwardRowsShape<D>::stages> tiles;
  float warp_sums[2][8];                    // of d_tau, d_sink
};

template <typename T, int D>
__global__ void __launch_bounds__(BackwardRowsShape<D>::threads, 1)
    backward_rows(const __grid_constant__ Params p, const __grid_constant__ BackwardMaps maps, int tiles, int partial_step) {
  using S = BackwardRowsShape<D>;
  constexpr int N = S::N, A = N / 2;
  extern __shared__ char unaligned[];
  char* const memory = unaligned + (1024 - shared_address(unaligned) % 1024) % 1024;
  __shared__ BackwardRowsShared<D> sm;
  char* const k_tiles = memory + 2 * S::q_bytes;
  char* const v_tiles = k_tiles + S::stages * S::tile_bytes;
  float* const table = reinterpret_cast<float*>(v_tiles + S::stages * S::tile_bytes);
  Tile t;
  t.head = blockIdx.y;
  t.batch = blockIdx.x / tiles;
  if (!locate(p, tiles - 1 - blockIdx.x % tiles, S::M, false, t)) return;
  Span span;
  const int last = min(t.first + S::M, t.q_length) - 1;
  span.begin = visible(p, t, t.first).begin / N * N;
  span.tiles = (max(visible(p, t, last).end - span.begin, 0) + N - 1) / N;
  if (threadIdx.x == 0) {
    barrier_init(&sm.rows_full, 1);
    sm.tiles.init(S::consumers);
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
  }
  fill_table(p, t.head, table, S::pad, threadIdx.x, S::threads);
  __syncthreads();
  const int group = warpgroup();
  if (group == 0) {                         // the producer
    fewer_registers<24>();
    if (threadIdx.x != 0 || span.tiles == 0) return;
    const int kv_head = t.head / (p.heads / p.kv_heads);
    barrier_expect(&sm.rows_full, 2 * S::q_bytes);
    for (int half = 0; half < S::halves; ++half) {
      for (int w = 0; w < S::consumers; ++w) {
        const int token = t.q_begin + t.first + 64 * w;
        char* to = memory + (half * S::M + 64 * w) * 128;
        copy_box(to, &maps.q, &sm.rows_full, 64 * half, t.head, token, t.batch);
        copy_box(to + S::q_bytes, &maps.d_out, &sm.rows_full, 64 * half, t.head, token, t.batch);
      }
    }
    for (int n = 0; n < span.tiles; ++n) {
      sm.tiles.wait_empty(n);
      uint64_t* full = &sm.tiles.full[n % S::stages];
      barrier_expect(full, 2 * S::tile_bytes);
      for (int half = 0; half < S::halves; ++half) {
        const int to = n % S::stages * S::tile_bytes + half * N * 128, token = t.k_begin + span.key<N>(n, false);
        copy_box(k_tiles + to, &maps.k, full, 64 * half, kv_head, token, t.batch);
        copy_box(v_tiles + to, &maps.v, full, 64 * half, kv_head, token, t.batch);
      }
    }
    return;
  }
  more_registers<240>();
  RowGroup b(p, t);
  b.start(t.first + (group - 1) * 64, p.bias_window > 0 ? table + S::pad : nullptr);
  const uint32_t sq = tile_start(shared_address(memory) + (group - 1) * 64 * 128), s_do = sq + units(S::q_bytes);
  const uint32_t sk = tile_start(shared_address(k_tiles)), sv = tile_start(shared_address(v_tiles));
  const bool elastic = p.normalizer == Normalizer::elastic, has_sink = p.normalizer == Normalizer::softmax_sink;
  const float tau = elastic ? p.tau[t.head] : -1;
  float lse2[2], offset[2], f_sum[2] = {}, fg_sum[2] = {}, g_sum[2] = {};
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    const float lse = b.row(h) < t.q_length ? p.lse[row_index(p, t, t.head, b.row(h))] * kLog2e : 0;
    lse2[h] = lse > -INFINITY ? lse : 0;
    offset[h] = elastic ? portable::row_offset(p, b.keys(h), tau) : 0;
  }
  if (span.tiles > 0) barrier_wait(&sm.rows_full, 0);
  for (int n = 0; n < span.tiles; ++n) {
    float s[A], g[A];
    sm.tiles.wait_full(n);
    const uint32_t stage = n % S::stages * units(S::tile_bytes);
    const int first_key = span.key<N>(n, false);
    issue_product<T, D, S::M, N>(s, sq, sk + stage);
    issue_product<T, D, S::M, N>(g, s_do, sv + stage);
    wgmma_wait<1>();
    const float c = b.finish<N>(s, first_key);
#pragma unroll
    for (int i = 0; i < A; ++i) s[i] = exp2_fast(fmaf(s[i], c, -lse2[i / 2 % 2]));
    wgmma_wait<0>();
    if (b.leader) barrier_arrive(&sm.tiles.empty[n % S::stages]);
    // Four sums side by side for each row: a warp would wait for a chain of dependent additions.
    float f[2][4] = {}, fg[2][4] = {}, e[2][4] = {};
    auto add = [&](auto dead) {
#pragma unroll
      for (int i = 0; i < A; ++i) {
        const int h = i / 2 % 2, x = i / 4 % 2 * 2 + i % 2;
        const float dw = dead(i, h) ? 0 : g[i];
        f[h][x] += s[i];
        fg[h][x] = fmaf(s[i], dw, fg[h][x]);
        e[h][x] += dw;
      }
    };
    if (tau < 0) {                          // hidden keys, whose s is zero now, are dead of themselves
      add([&](int i, int h) { return s[i] <= -offset[h]; });
    } else {
      const Keys seen[2] = {b.keys(0), b.keys(1)};
      add([&](int i, int h) {
        const int key = first_key + 2 * (b.lane % 4) + i / 4 * 8 + i % 2;
        return key < seen[h].begin || key >= seen[h].end;
      });
    }
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      f_sum[h] += (f[h][0] + f[h][1]) + (f[h][2] + f[h][3]);
      fg_sum[h] += (fg[h][0] + fg[h][1]) + (fg[h][2] + fg[h][3]);
      g_sum[h] += (e[h][0] + e[h][1]) + (e[h][2] + e[h][3]);
    }
  }
  float tau_sum = 0, sink_sum = 0;
#pragma unroll
  for (int h = 0; h < 2; ++h) {
#pragma unroll
    for (int d = 1; d < 4; d *= 2) {
      f_sum[h] += __shfl_xor_sync(~0u, f_sum[h], d);
      fg_sum[h] += __shfl_xor_sync(~0u, fg_sum[h], d);
      g_sum[h] += __shfl_xor_sync(~0u, g_sum[h], d);
    }
    if (b.lane % 4 != 0 || b.row(h) >= t.q_length) continue;
    const int count = b.keys(h).end - b.keys(h).begin;
    const float in_sink = has_sink && count > 0 ? exp2_fast(p.sink[t.head] * kLog2e - lse2[h]) : 0;
    // A row's only key has p = 1 whatever its score, and ds = 0 exactly: p is left out and its one added to the offset.
    const bool alone = count == 1 && !has_sink;
    const float norm = count > 0 && !alone ? 1 / (f_sum[h] + in_sink) : 0, center = fg_sum[h] * norm;
    p.row_state[row_index(p, t, t.head, b.row(h))] = make_float4(lse2[h], norm, center, offset[h] + alone);
    sink_sum -= in_sink * norm * center;
    tau_sum += p.per_visible ? g_sum[h] / static_cast<float>(max(count, 1)) : g_sum[h];
  }
  for (int d = 1; d < 32; d *= 2) {
    tau_sum += __shfl_xor_sync(~0u, tau_sum, d);
    sink_sum += __shfl_xor_sync(~0u, sink_sum, d);
  }
  const int warp = threadIdx.x / 32 - 4;
  if (b.lane == 0) {
    sm.warp_sums[0][warp] = tau_sum;
    sm.warp_sums[1][warp] = sink_sum;
  }
  asm volatile("bar.sync 1, 256;" ::: "memory");
  if (warp == 0 && b.lane < 2) {
    float sum = 0;
    for (int n = 0; n < 8; ++n) sum += sm.warp_sums[b.lane][n];
    p.partial[(static_cast<int64_t>(b.lane) * p.heads + t.head) * partial_step + blockIdx.x] = sum;
  }
}

}  // namespace lazy::kernels::cuda::hopper
