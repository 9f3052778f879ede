// First kernel of the Hopper backward: computes the row states (hopper_rows.cuh) with a sweep over the keys, like
// portable_backward_rows.cuh. While a warpgroup adds the terms of one tile of keys to the sums of its rows, the matrix
// products of its next tile are in flight. Softmax is processed as Elastic-Softmax with an offset of zero. Softmax uses
// this kernel only if fp32 gradients (distance bias, sink) are required or if there are at most 256 keys.
#pragma once
#include "attention/cuda/hopper_rows.cuh"

namespace lazy::kernels::cuda::hopper {

struct BackwardMaps {
  CUtensorMap q, d_out, k, v;  // TMA tensor maps whose boxes have 64 rows
};

template <int D>
struct BackwardRowsShape {
  static constexpr int consumers = 2, M = 64 * consumers, N = 64, threads = 128 * (consumers + 1);
  static constexpr int columns = hopper_columns(D), halves = columns / 64;
  // Number of stages of the ring buffer; a stage has a tile of keys and a tile of values.
  static constexpr int stages = halves == 1 ? 6 : 4;
  static constexpr int q_bytes = M * columns * 2, tile_bytes = N * columns * 2, pad = M + N;
  static constexpr int bytes = 2 * q_bytes + 2 * stages * tile_bytes + 1024;
  static constexpr int table(int bias_window) { return bias_window > 0 ? bias_window + 2 * pad : 0; }
};

template <int D>
struct BackwardRowsShared {
  uint64_t rows_full;
  Pipeline<BackwardRowsShape<D>::stages> tiles;
  float warp_sums[2][8];  // partial sums of d_tau and d_sink per warp
};

// Code of the producer thread: loads the block's rows of q and d_out, then the tiles of keys and values.
template <int D>
__device__ void produce_key_tiles(const BackwardMaps& maps, const Tile& t, int kv_head, const Span& span,
                                  BackwardRowsShared<D>& sm, char* memory) {
  using S = BackwardRowsShape<D>;
  barrier_expect(&sm.rows_full, 2 * S::q_bytes);
  for (int half = 0; half < S::halves; ++half) {
    for (int w = 0; w < S::consumers; ++w) {
      const int token = t.q_begin + t.first + 64 * w;
      char* to = memory + (half * S::M + 64 * w) * 128;
      copy_box(to, &maps.q, &sm.rows_full, 64 * half, t.head, token, t.batch);
      copy_box(to + S::q_bytes, &maps.d_out, &sm.rows_full, 64 * half, t.head, token, t.batch);
    }
  }
  char* const k_tiles = memory + 2 * S::q_bytes;
  for (int n = 0; n < span.tiles; ++n) {
    sm.tiles.wait_empty(n);
    uint64_t* full = &sm.tiles.full[n % S::stages];
    barrier_expect(full, 2 * S::tile_bytes);
    for (int half = 0; half < S::halves; ++half) {
      char* const to = k_tiles + n % S::stages * S::tile_bytes + half * S::N * 128;
      const int token = t.k_begin + span.key<S::N>(n, false);
      copy_box(to, &maps.k, full, 64 * half, kv_head, token, t.batch);
      copy_box(to + S::stages * S::tile_bytes, &maps.v, full, 64 * half, kv_head, token, t.batch);
    }
  }
}

// A thread's partial sums for two rows: the sum of f = exp2(score - lse2) over all keys, and the sums of f g and of g
// over the keys with nonzero weight. g = dO . v is the gradient of the weight.
struct GradientSums {
  float f[2] = {}, fg[2] = {}, g[2] = {};

  // Adds the terms of a tile of keys. s contains f = exp2(score - lse2), and dw the gradients of the weights. Keys with
  // f <= dead have zero weight. Several independent partial sums avoid a long chain of dependent additions.
  template <int A>
  __device__ void add(const float (&s)[A], const float (&dw)[A], const float (&dead)[2]) {
    float f_part[2][2] = {}, fg_part[2][2] = {}, g_part[2][2] = {};
#pragma unroll
    for (int i = 0; i < A; ++i) {
      const int h = i / 2 % 2, x = i % 2;
      f_part[h][x] += s[i];
      if (!(s[i] <= dead[h])) {
        fg_part[h][x] = fmaf(s[i], dw[i], fg_part[h][x]);
        g_part[h][x] += dw[i];
      }
    }
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      f[h] += f_part[h][0] + f_part[h][1];
      fg[h] += fg_part[h][0] + fg_part[h][1];
      g[h] += g_part[h][0] + g_part[h][1];
    }
    fence_registers(f);  // prevents the compiler from moving additions after the next wait
    fence_registers(fg);
    fence_registers(g);
  }
};

template <typename T, int D>
struct BackwardRows : RowGroup {
  using S = BackwardRowsShape<D>;
  static constexpr int N = S::N, A = N / 2;
  static constexpr bool keep_d_out = D == 64;  // whether d_out stays in registers; a larger D needs too many
  BackwardRowsShared<D>& sm;
  uint32_t q[D / 16][4], d_out[keep_d_out ? D / 16 : 1][4];
  uint32_t s_do, sk, sv;  // descriptor_base of d_out, keys and values
  float tau, lse2[2], dead[2];
  GradientSums sums;

  __device__ BackwardRows(const Params& p, const Tile& t, BackwardRowsShared<D>& sm) : RowGroup(p, t), sm(sm) {}

  // Issues the products for s and g of the n-th tile. After the warpgroup's last tile the products use arbitrary data
  // and their results are not read; this avoids a branch.
  __device__ void issue(float (&s)[A], float (&g)[A], int n) {
    const uint32_t stage = n % S::stages * descriptor_units(S::tile_bytes);
    issue_product<T, D, N>(s, q, sk + stage);
    if constexpr (keep_d_out) {
      issue_product<T, D, N>(g, d_out, sv + stage);
    } else {
      issue_product<T, D, S::M, N>(g, s_do, sv + stage);
    }
  }
  __device__ void release(int n) {
    if (lane == 0) barrier_arrive(&sm.tiles.empty[n % S::stages]);
  }
  __device__ void skip(int n) {
    sm.tiles.wait_full(n);
    release(n);
  }
  // Waits for the next tile and for the products. The branches of the wait for the tile prevent the compiler from
  // moving the wait for the products before the additions of the previous tile.
  __device__ void wait(float (&s)[A], float (&g)[A], int n) {
    if (n + 1 < tiles.end) sm.tiles.wait_full(n + 1);
    wgmma_wait<0>();
    fence_registers(s);
    fence_registers(g);
    if (n < tiles.end) release(n);
  }
  __device__ void add(float (&s)[A], float (&g)[A], int n) {
    const bool plain = n >= bare.begin && n < bare.end;
    float c = factor;
    if (!plain) c = this->template finish<N>(s, origin + n * N);
#pragma unroll
    for (int i = 0; i < A; ++i) s[i] = exp2_fast(fmaf(s[i], c, -lse2[i / 2 % 2]));
    // With tau < 0, masked keys have f = 0 and are therefore not added to the sum of g; g needs no mask.
    if (!plain && tau >= 0) this->template hide<N>(g, origin + n * N, 0);
    sums.add(s, g, dead);
  }
  __device__ void sweep(int count) {
    const int lo = tiles.begin, hi = tiles.end;
#pragma unroll 1
    for (int n = 0; n < lo; ++n) skip(n);
    if (lo < hi) {
      float s[2][A], g[2][A];
      sm.tiles.wait_full(lo);
      issue(s[0], g[0], lo);
      wait(s[0], g[0], lo);
#pragma unroll 1
      for (int n = lo; n < hi; n += 2) {
        issue(s[1], g[1], n + 1);
        add(s[0], g[0], n);
        wait(s[1], g[1], n + 1);
        if (n + 1 == hi) break;
        issue(s[0], g[0], n + 2);
        add(s[1], g[1], n + 1);
        wait(s[0], g[0], n + 2);
      }
    }
#pragma unroll 1
    for (int n = hi; n < count; ++n) skip(n);
  }
};

template <typename T, int D>
__global__ void __launch_bounds__(BackwardRowsShape<D>::threads, 1)
    backward_rows(const __grid_constant__ Params p, const __grid_constant__ BackwardMaps maps, int tiles,
                  int state_tiles, int partial_step) {
  using S = BackwardRowsShape<D>;
  constexpr int N = S::N;
  extern __shared__ char unaligned[];
  char* const memory = unaligned + (1024 - shared_address(unaligned) % 1024) % 1024;
  __shared__ BackwardRowsShared<D> sm;
  __shared__ Tile t;  // in shared memory to save registers
  float* const table = reinterpret_cast<float*>(memory + 2 * S::q_bytes + 2 * S::stages * S::tile_bytes);
  Tile found;
  found.head = blockIdx.y;
  found.batch = blockIdx.x / tiles;
  if (!locate(p, tiles - 1 - blockIdx.x % tiles, S::M, false, found)) return;
  Span span;
  const int last = min(found.first + S::M, found.q_length) - 1;
  span.begin = uniform(visible(p, found, found.first).begin / N * N);
  span.tiles = uniform((max(visible(p, found, last).end - span.begin, 0) + N - 1) / N);
  if (threadIdx.x == 0) {
    t = found;
    barrier_init(&sm.rows_full, 1);
    sm.tiles.init(4 * S::consumers);  // each consumer warp arrives once per use of a stage
    fence_barriers();
  }
  fill_table(p, found.head, table, S::pad, threadIdx.x, S::threads);
  __syncthreads();
  const int group = warpgroup();
  if (group == 0) {  // producer warpgroup
    dealloc_registers<24>();
    if (threadIdx.x != 0 || span.tiles == 0) return;
    produce_key_tiles<D>(maps, t, t.head / (p.heads / p.kv_heads), span, sm, memory);
    return;
  }
  alloc_registers<240>();
  const bool elastic = takes_tau(p.normalizer), has_sink = takes_sink(p.normalizer);
  BackwardRows<T, D> b(p, t, sm);
  const int offset_rows = (group - 1) * 64;
  b.start(t.first + offset_rows, p.bias_window > 0 ? table + S::pad : nullptr);
  b.template cut<N>(span.begin);
  b.tau = elastic ? p.tau[t.head] : -1;
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    const float lse = b.row(h) < t.q_length ? p.lse[row_index(p, t, t.head, b.row(h))] * kLog2e : 0;
    b.lse2[h] = lse > -INFINITY ? lse : 0;
    // If the offset is not negative, the weight of every visible key is nonzero, even if f is zero; the threshold -1
    // then treats every f as nonzero.
    b.dead[h] = b.tau >= 0 ? -1 : elastic ? -portable::elastic_offset(p, b.keys(h), b.tau) : 0;
  }
  if (span.tiles > 0) {
    barrier_wait(&sm.rows_full, 0);
    const uint32_t rows = shared_address(memory) + offset_rows * 128, keys = shared_address(memory) + 2 * S::q_bytes;
    b.s_do = descriptor_base(rows + S::q_bytes);
    b.sk = descriptor_base(keys);
    b.sv = descriptor_base(keys + S::stages * S::tile_bytes);
    load_left<D, S::M>(b.q, rows);
    if constexpr (BackwardRows<T, D>::keep_d_out) load_left<D, S::M>(b.d_out, rows + S::q_bytes);
    b.sweep(span.tiles);
  }
  const int state_tile = (p.cu_q ? tiles_before(p, t.document, 64) : 0) + b.first / 64;
  float tau_sum = 0, sink_sum = 0;
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    const float f = quad_sum(b.sums.f[h]), fg = quad_sum(b.sums.fg[h]), g = quad_sum(b.sums.g[h]);
    const int row = b.row(h);
    if (b.lane % 4 != 0 || row >= t.q_length) continue;
    const int count = b.keys(h).end - b.keys(h).begin;
    const float in_sink = has_sink && count > 0 ? exp2_fast(scaled_sink(p, t.head) - b.lse2[h]) : 0;
    // If a row sees only one key and no sink, p = 1 for every score and ds is exactly 0. The norm is then set to 0,
    // which removes p from the weight, and one is added to the offset instead.
    const bool alone = count == 1 && !has_sink;
    const float norm = count > 0 && !alone ? 1 / (f + in_sink) : 0, center = fg * norm;
    float* const state = row_state(p, t, t.head, state_tiles, state_tile) + row - b.first;
    state[0] = b.lse2[h];
    state[64] = norm;
    state[128] = norm * center;
    state[192] = (elastic ? portable::elastic_offset(p, b.keys(h), b.tau) : 0) + alone;
    sink_sum -= in_sink * norm * center;
    tau_sum += p.per_visible ? g / static_cast<float>(max(count, 1)) : g;
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
