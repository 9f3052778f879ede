// Second kernel of the Hopper backward. A block processes 128 keys, 64 per warpgroup. It sweeps over the rows of all
// query heads of the group that see these keys, 64 rows per step. The tiles of scores are transposed (keys x rows), so
// that the accumulators of the weights and of ds (the gradients of the scores) can be left operands of the products for
// dV and dK. ds is stored in shared memory only for dQ, which is a sum over all keys of the block. Each warpgroup
// computes half of the columns of dQ, one step after the corresponding scores. Therefore, the warpgroups do not wait
// for each other, and one can compute exponentials while the other multiplies.
#pragma once
#include "attention/cuda/hopper_backward_key_group.cuh"

namespace lazy::kernels::cuda::hopper {

template <typename T, int D, RowSums SUMS>
__global__ void __launch_bounds__(BackwardKeysShape<D, SUMS>::threads, 1)
    backward_keys(const __grid_constant__ Params p, const __grid_constant__ BackwardMaps maps, int tiles,
                  int row_tiles) {
  using S = BackwardKeysShape<D, SUMS>;
  constexpr int N = S::N, M = S::M, A = M / 2;
  extern __shared__ char unaligned[];
  const BackwardKeysMemory<S> memory(unaligned + (1024 - shared_address(unaligned) % 1024) % 1024, p.bias_window);
  __shared__ BackwardKeysShared<S> sm;
  __shared__ Tile t;  // in shared memory, because registers are scarce
  const int kv_head = blockIdx.y, heads = p.heads / p.kv_heads, group = warpgroup();
  const bool want_bias = SUMS != RowSums::softmax && p.bias_slabs && p.bias_window > 0;
  Tile found;
  found.batch = blockIdx.x / tiles;
  found.head = kv_head;
  const bool exists = locate(p, blockIdx.x % tiles, N, true, found);
  const int count = exists ? min(N, found.k_length - found.first) : 0;
  Keys rows = exists ? rows_seeing(p, found, found.first, found.first + count - 1) : Keys{0, 0};
  const int many = rows.end > rows.begin ? uniform((rows.end - rows.begin / M * M + M - 1) / M) : 0;
  rows.begin = uniform(rows.begin / M * M);
  rows.end = rows.begin + many * M;
  const int steps = heads * many;
  if (steps == 0 && want_bias) {
    float* const slabs = p.bias_slabs + (static_cast<int64_t>(blockIdx.x) * p.heads + kv_head * heads) * p.bias_window;
    for (int n = threadIdx.x; n < heads * p.bias_window; n += S::threads) slabs[n] = 0;
  }
  if (!exists) return;
  // Index of the document's first row tile.
  const int row_tile = p.cu_q ? uniform(tiles_before(p, found.document, M)) : 0;
  if (threadIdx.x == 0) {
    t = found;
    barrier_init(&sm.kv_full, 1);
    sm.rows.init(4 * S::consumers);  // each consumer warp arrives once per use of a stage
    for (int n = 0; n < 2; ++n) {
      barrier_init(&sm.ds.full[n], 4 * S::consumers);
      barrier_init(&sm.ds.empty[n], 4 * S::consumers);
    }
    fence_barriers();
  }
  __syncthreads();
  SweepStep now{0, kv_head * heads, rows.begin};

  if (group == 0) {  // producer warpgroup
    dealloc_registers<24>();
    // With zero steps, the keys and values are not loaded: no code would wait for these copies, and they could
    // overwrite the zeros that the consumers write to the same shared memory for dK and dV.
    if (threadIdx.x != 0 || steps == 0) return;
    produce_row_tiles<S>(p, maps, t, t.first, now, steps, rows, row_tiles, row_tile, sm, memory);
    return;
  }

  alloc_registers<240>();
  const int thread = threadIdx.x - 128;
  KeyGroup<T, D, SUMS> b{p, t, sm, memory, group - 1, thread};
  Diagonals<SUMS> diagonals{{memory.diagonals, p.bias_window}};
  if (want_bias) diagonals.start(thread);
  float d_k[D / 2], d_v[D / 2];
#pragma unroll
  for (int n = 0; n < D / 2; ++n) d_k[n] = d_v[n] = 0;

  auto take_head = [&](int head) {
    if (p.bias_window == 0) return;
    consumer_barrier();
    fill_table(p, head, memory.table, S::pad, b.now(), 256);
    consumer_barrier();
  };
  // Second part of a step, which adds dQ and the gradient of the distance bias to their sums. It runs after all warps
  // have stored the step's ds and its dQ is computed.
  auto drain = [&](const SweepStep& step, const float(&d_q)[S::columns / 4]) {
    if (p.dq_sum) {
      float* to = hopper_dq(p, t, S::columns, step.head, row_tiles, row_tile + step.first / M) + b.now() * 4;
#pragma unroll
      for (int n = 0; n < S::columns / 16; ++n) {
        if (8 * n + S::columns / 2 >= D && group == S::consumers) break;  // columns beyond the head size
        reduce_add(to + n * 1024, d_q[4 * n], d_q[4 * n + 1], d_q[4 * n + 2], d_q[4 * n + 3]);
      }
    }
    if (want_bias && b.is_near_block(step)) {
      diagonals.template take<T>(b.now(), step.index, b.block_distance(step), b.ds_tile(step.index));
    }
    __syncwarp();
    if (b.lane() == 0) barrier_arrive(&sm.ds.empty[step.index % 2]);
    if (want_bias && step.first + M == rows.end) {  // last step of the head
      diagonals.end(b.now(), b.block_distance(step));
      consumer_barrier();
      diagonals.move(b.now(), p.bias_slabs + (static_cast<int64_t>(blockIdx.x) * p.heads + step.head) * p.bias_window);
      consumer_barrier();
    }
  };
  if (steps > 0) {
    float s[A], g[A], d_q[S::columns / 4];
    // Waits for the products of a step and converts the scores s to f = exp2(score - lse2), where lse2 is the row's
    // log-sum-exp. After the call, g contains the gradients of the weights.
    auto finish_products = [&](const SweepStep& step) {
      wgmma_wait<1>();
      fence_registers(s);
      b.exponentials(s, b.add_biases(s, step), step.index);
      fence_registers(s);
      // This wait returns immediately. Its only purpose is that its branch prevents the compiler from moving the second
      // wgmma_wait before the exponentials.
      sm.rows.wait_full(step.index);
      wgmma_wait<0>();
      fence_registers(g);
    };
    barrier_wait(&sm.kv_full, 0);
    b.load_keys();
    take_head(now.head);
    b.issue_scores(s, 0, steps);
    b.issue_gradients(g, 0);
    finish_products(now);
#pragma unroll 1
    while (true) {
      const int step = now.index;
      b.differentiate(s, g, step);
      if (!b.is_bare(now)) b.hide(s, g, now.first);
      sm.ds.wait_empty(step);
      if (want_bias && b.is_near(now)) diagonals.put(b.now(), g, step);
      uint32_t weights[M / 16][4], ds[M / 16][4];
#pragma unroll
      for (int k = 0; k < M / 16; ++k) {
#pragma unroll
        for (int n = 0; n < 4; ++n) {
          const int i = 8 * k + 2 * n;
          weights[k][n] = pack_positive<T>(s[i], s[i + 1]);
          ds[k][n] = pack<T>(g[i], g[i + 1]);
        }
      }
      b.store_ds(ds, step);
      __syncwarp();
      if (b.lane() == 0) barrier_arrive(&sm.ds.full[step % 2]);

      // In the first step, the product for dQ uses arbitrary data and its result is not read.
      if (step > 0) sm.ds.wait_full(step - 1);
      b.issue_dq(d_q, step + 1);
      b.issue_sums(d_v, d_k, weights, ds, step);
      if constexpr (S::halves == 1) {
        b.issue_scores(s, step + 1, steps);
        b.issue_gradients(g, step + 1);
        wgmma_wait<4>();
      } else {
        wgmma_wait<2>();
      }
      fence_registers(d_q);
      if (step > 0) drain(now.before(rows), d_q);
      if constexpr (S::halves == 1) {
        wgmma_wait<1>();
        b.release_rows(step);
      }
      if (step + 1 == steps) break;
      now.advance(rows);
      if constexpr (S::halves == 2) {
        wgmma_wait<1>();
        b.issue_scores(s, step + 1, steps);
        wgmma_wait<1>();
        b.release_rows(step);
        b.issue_gradients(g, step + 1);
      }
      if (now.first == rows.begin) take_head(now.head);
      finish_products(now);
    }
    wgmma_wait<0>();
    sm.ds.wait_full(now.index);
    b.issue_dq(d_q, now.index);
    wgmma_wait<0>();
    fence_registers(d_q);
    fence_registers(d_k);
    fence_registers(d_v);
    consumer_barrier();  // wait until all warps have finished drain() of the previous step
    drain(now, d_q);
  }
  consumer_barrier();
  if (p.cos) b.rotate_keys_back(d_k);
  b.store(p.d_k, d_k, p.scale, count);
  b.store(p.d_v, d_v, 1, count);
}

}  // namespace lazy::kernels::cuda::hopper
