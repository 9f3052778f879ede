// A warpgroup of the Hopper forward: 64 rows, tiles of N keys that a producer warp brings in two rings, K and V. Every
// warpgroup of a block goes through every tile, to release it, and computes those that its rows see.
#pragma once
#include "attention/cuda/hopper_rows.cuh"
#include "attention/cuda/tensor_map.h"

namespace lazy::kernels::cuda::hopper {

struct ForwardMaps {
  CUtensorMap q, k, v;
};

template <int D>
struct ForwardShape {
  static constexpr int consumers = D == 64 ? 3 : 2, M = 64 * consumers, N = 128, halves = D / 64;
  static constexpr int threads = 128 * (consumers + 1), registers = consumers == 3 ? 160 : 240;
  static constexpr int k_stages = D == 64 ? 4 : 3, v_stages = D == 64 ? 3 : 2;
  static constexpr int q_bytes = M * D * 2, tile_bytes = N * D * 2, pad = M + N;
  static constexpr int bytes = q_bytes + (k_stages + v_stages) * tile_bytes + 1024 + 256;
  static constexpr int table(int bias_window) { return bias_window > 0 ? bias_window + 2 * pad : 0; }
};

template <int D>
struct ForwardShared {
  using S = ForwardShape<D>;
  alignas(8) uint64_t q_full;
  Ring<S::k_stages> k;
  Ring<S::v_stages> v;
};

// What a thread's two rows leave beside their output. The statistics are the thread's own shares, summed at the end.
struct RowResults {
  float lse[2] = {-INFINITY, -INFINITY};  // natural log
  float head[2] = {}, total[2] = {};      // weight on the first key, sum of weights
  int alive[2] = {};
};

// Log-sum-exp and statistics of a thread's rows to memory, once the four lanes of a row have told each other their
// shares.
__device__ inline void write_results(const Params& p, const RowGroup& b, RowResults& r) {
  const Tile& t = b.t;
#pragma unroll
  for (int h = 0; h < 2; ++h) {
#pragma unroll
    for (int d = 1; d < 4; d *= 2) {
      r.total[h] += __shfl_xor_sync(~0u, r.total[h], d);
      r.alive[h] += __shfl_xor_sync(~0u, r.alive[h], d);
    }
    if (b.lane % 4 != 0 || b.row(h) >= t.q_length) continue;
    const int64_t index = row_index(p, t, t.head, b.row(h));
    if (p.lse) p.lse[index] = r.lse[h];
    if (p.stats) {
      const int64_t part = static_cast<int64_t>(p.batch) * p.heads * p.q_length;
      p.stats[index] = r.head[h];
      p.stats[part + index] = 1 - r.total[h];
      p.stats[2 * part + index] = static_cast<float>(r.alive[h]);
    }
  }
}

template <typename T, int D>
struct Consumer : RowGroup {
  using S = ForwardShape<D>;
  static constexpr int N = S::N, A = N / 2;  // A: accumulators of a thread's scores
  ForwardShared<D>& sm;
  Turns<S::consumers> turns;  // softmax's; elastic is faster without
  int count;                  // tiles of the block
  uint32_t q, k, sq, sk, sv;  // addresses of the warpgroup's queries, of keys; tile_start of them, of values

  __device__ Consumer(const Params& p, const Tile& t, ForwardShared<D>& sm) : RowGroup(p, t), sm(sm) {}

  // `use` counts what went through a ring. Every warp releases for itself.
  __device__ void issue_scores(float (&s)[A], int use) {
    sm.k.wait_full(use);
    issue_product<T, D, S::M, N>(s, sq, sk + use % S::k_stages * units(S::tile_bytes));
  }
  __device__ void release_k(int use) {
    if (lane == 0) barrier_arrive(&sm.k.empty[use % S::k_stages]);
  }
  __device__ void skip_k(int use) {
    sm.k.wait_full(use);
    release_k(use);
  }
  // o += weights V.
  __device__ void issue_sum(float (&o)[D / 2], const uint32_t (&weights)[N / 16][4], int use) {
    sm.v.wait_full(use);
    const uint32_t tile = sv + use % S::v_stages * units(S::tile_bytes);
    wgmma_fence();
#pragma unroll
    for (int k = 0; k < N / 16; ++k) wgmma<T, 1>(o, weights[k], descriptor(tile + units(k * 2048)), 1);
    wgmma_commit();
  }
  __device__ void release_v(int use) {
    if (lane == 0) barrier_arrive(&sm.v.empty[use % S::v_stages]);
  }
  __device__ void skip_v(int use) {
    sm.v.wait_full(use);
    release_v(use);
  }
  __device__ void skip_turn() {
    turns.wait();
    turns.pass();
  }
  // Adds biases and masks to the scores of a tile where it needs them; the factor that makes them units of log2.
  __device__ float finish_tile(float (&s)[A], int tile) {
    float c = factor;
    if (tile < bare.begin || tile >= bare.end) c = this->template finish<N>(s, origin + tile * N);
    return c;
  }
};

// Weights as the left side of a product, what is negative as zero.
template <typename T, int N>
__device__ void pack_weights(uint32_t (&weights)[N / 16][4], const float (&s)[N / 2]) {
#pragma unroll
  for (int k = 0; k < N / 16; ++k) {
#pragma unroll
    for (int n = 0; n < 4; ++n) weights[k][n] = pack_positive<T>(s[8 * k + 2 * n], s[8 * k + 2 * n + 1]);
  }
}

}  // namespace lazy::kernels::cuda::hopper
