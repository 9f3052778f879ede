// A consumer warpgroup of the Hopper forward, which processes 64 rows. The producer warp loads tiles of N keys into two
// circular buffers, one for K and one for V. Every warpgroup of a block waits for and releases every tile, but computes
// only the tiles that its rows see.
#pragma once
#include "attention/cuda/hopper_rows.cuh"

namespace lazy::kernels::cuda::hopper {

struct ForwardMaps {
  CUtensorMap q, k, v;
};

// Sizes of the tiles and buffers of the Hopper forward. ALIVE: the kernel also computes alive_sum. Its accumulators
// need registers, so the tiles then have only half as many keys.
template <int D, bool ALIVE>
struct ForwardShape {
  static constexpr int consumers = D == 64 ? 3 : 2, M = 64 * consumers, N = ALIVE ? 64 : 128;
  static constexpr int columns = hopper_columns(D), halves = columns / 64;
  static constexpr int threads = 128 * (consumers + 1), registers = consumers == 3 ? 160 : 240;
  static constexpr int k_stages = halves == 1 ? 4 : 3, v_stages = halves == 1 ? 3 : 2;
  static constexpr int q_bytes = M * columns * 2, tile_bytes = N * columns * 2, pad = M + N;
  static constexpr int bytes = q_bytes + (k_stages + v_stages) * tile_bytes + 1024 + 256;
  static constexpr int table(int bias_window) { return bias_window > 0 ? bias_window + 2 * pad : 0; }
};

template <int D, bool ALIVE>
struct ForwardShared {
  using S = ForwardShape<D, ALIVE>;
  alignas(8) uint64_t q_full;
  Pipeline<S::k_stages> k;
  Pipeline<S::v_stages> v;
};

// lse and statistics of a thread's two rows. During the sweep over the keys they are the thread's partial sums;
// write_results() reduces them over the four lanes that share a row.
struct RowResults {
  float lse[2] = {-INFINITY, -INFINITY};  // natural logarithm
  float head[2] = {}, total[2] = {};      // head: weight on the sequence's first key; total: sum of weights
  int alive[2] = {};                      // number of keys with nonzero weight
};

// Reduces the statistics over the four lanes of a row and stores them with the log-sum-exp.
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

using portable::LaneScores;

// The values that Params::score_stats needs in addition to the sum of exponentials exp2(x), with x = score - base: the
// maximum score and the sum of x exp2(x). These are the partial results of one thread.
struct RowScores {
  float largest[2] = {-INFINITY, -INFINITY}, weighted[2] = {};

  // Adds the results of a tile of keys whose exponentials are relative to the current base. most * c is the maximum
  // score of the tile, and `added` is the tile's sum of x exp2(x).
  __device__ void add(float c, const float (&most)[2], const float (&added)[2]) {
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      largest[h] = fmaxf(largest[h], most[h] * c);
      weighted[h] += added[h];
    }
  }
  // Reduces the results over the lanes of a row and stores them. `base` and `sum` are the thread's base and sum of
  // exponentials.
  __device__ void write(const RowGroup& b, const float (&base)[2], const float (&sum)[2]) const {
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      LaneScores scores{base[h], sum[h], weighted[h]};
      scores.merge_lane(1);
      scores.merge_lane(2);
      const float other = fmaxf(largest[h], __shfl_xor_sync(~0u, largest[h], 1));
      const float most = fmaxf(other, __shfl_xor_sync(~0u, other, 2));
      if (b.lane % 4 != 0 || b.row(h) >= b.t.q_length) continue;
      const Keys keys = b.keys(h);
      ScoreStatistics found = scores.finish(keys.end - keys.begin);
      // Use the exact maximum score, because the base is only an approximation of it.
      if (found.largest > -INFINITY) found.largest = most * kLn2;
      portable::put_score_statistics(b.p, b.t, b.row(h), found);
    }
  }
};
// Stores the results of rows that see no key.
__device__ inline void write_no_scores(const RowGroup& b) { RowScores().write(b, {-INFINITY, -INFINITY}, {}); }

template <typename T, int D, bool ALIVE>
struct Consumer : RowGroup {
  using S = ForwardShape<D, ALIVE>;
  static constexpr int N = S::N, A = N / 2;  // N: keys per tile; A: score accumulators per thread
  ForwardShared<D, ALIVE>& sm;
  PingPongBarrier<S::consumers> order;  // only used for softmax; the elastic normalizers are faster without it
  int count;                            // number of key tiles of the block
  // q, k: shared addresses of the warpgroup's queries and of the keys. sq, sk, sv: descriptor_base of queries, keys
  // and values.
  uint32_t q, k, sq, sk, sv;

  __device__ Consumer(const Params& p, const Tile& t, ForwardShared<D, ALIVE>& sm) : RowGroup(p, t), sm(sm) {}

  // Waits for a tile of keys and issues the product for its scores. `use` is the index of the tile among all tiles that
  // pass through the ring buffer.
  __device__ void issue_scores(float (&s)[A], int use) {
    sm.k.wait_full(use);
    issue_product<T, D, S::M, N>(s, sq, sk + use % S::k_stages * descriptor_units(S::tile_bytes));
  }
  __device__ void release_k(int use) {
    if (lane == 0) barrier_arrive(&sm.k.empty[use % S::k_stages]);
  }
  __device__ void skip_k(int use) {
    sm.k.wait_full(use);
    release_k(use);
  }
  __device__ void wait_v(int use) { sm.v.wait_full(use); }
  // Issues the product o += weights V for a tile that has already arrived.
  __device__ void issue_sum(float (&o)[D / 2], const uint32_t (&weights)[N / 16][4], int use) {
    const uint32_t tile = sv + use % S::v_stages * descriptor_units(S::tile_bytes);
    wgmma_fence();
#pragma unroll
    for (int k = 0; k < N / 16; ++k) wgmma<T, 1>(o, weights[k], descriptor(tile + descriptor_units(k * 2048)), 1);
    wgmma_commit();
  }
  __device__ void release_v(int use) {
    if (lane == 0) barrier_arrive(&sm.v.empty[use % S::v_stages]);
  }
  __device__ void skip_v(int use) {
    sm.v.wait_full(use);
    release_v(use);
  }
  __device__ void skip_order() {
    order.wait();
    order.pass();
  }
  // Adds biases and masks to s if the tile needs them. Returns the factor that converts s to scores in units of log2.
  __device__ float finish_tile(float (&s)[A], int tile) {
    float c = factor;
    if (tile < bare.begin || tile >= bare.end) c = this->template finish<N>(s, origin + tile * N);
    return c;
  }
};

// Packs the weights to 16 bits, as the left operand of a product. Negative weights become zero.
template <typename T, int N>
__device__ void pack_weights(uint32_t (&weights)[N / 16][4], const float (&s)[N / 2]) {
#pragma unroll
  for (int k = 0; k < N / 16; ++k) {
#pragma unroll
    for (int n = 0; n < 4; ++n) weights[k][n] = pack_positive<T>(s[8 * k + 2 * n], s[8 * k + 2 * n + 1]);
  }
}

// Functions that convert the exponentials of a tile to the weights of elastic or elastic_sink and compute the
// statistics of the rows.

// Returns x y + z, clamped to [0, 1] by the saturation of the instruction. A NaN becomes zero.
__device__ inline float fma_clamped(float x, float y, float z) {
  float r;
  asm("fma.rn.sat.f32 %0, %1, %2, %3;" : "=f"(r) : "f"(x), "f"(y), "f"(z));
  return r;
}

// For each of two packed nonnegative 16-bit weights, returns 1 in the same 16 bits if the weight is not zero, otherwise
// 0.
__device__ inline uint32_t alive_of_two(uint32_t weights) {
  uint32_t ones;
  asm volatile("min.u16x2 %0, %1, %2;" : "=r"(ones) : "r"(weights), "r"(0x00010001));
  return ones;
}

// Creates an operand of type T that contains 1.0 for each 16-bit weight that is not zero, and 0.0 for each zero weight.
template <typename T, int N>
__device__ void alive_ones(uint32_t (&ones)[N / 16][4], const uint32_t (&weights)[N / 16][4]) {
  constexpr uint32_t one = std::is_same_v<T, __nv_bfloat16> ? 0x3F80 : 0x3C00;
#pragma unroll
  for (int k = 0; k < N / 16; ++k) {
#pragma unroll
    for (int n = 0; n < 4; ++n) ones[k][n] = alive_of_two(weights[k][n]) * one;
  }
}

template <typename T, int N, bool STATS>
struct WeightAccumulator {
  // bf16 never rounds a positive weight to zero, so nonzero weights can be counted after packing. fp16 may round to
  // zero.
  static constexpr bool kCountsPacked = std::is_same_v<T, __nv_bfloat16>;
  RowResults& r;
  float tau;

  // Whether compute() clamps the weights to [0, 1] and sums them for the statistics. With tau < 0, no weight exceeds
  // one, so the clamp does not change positive weights. With tau >= 0 no sum is needed, because the weight of every
  // visible key is nonzero and the sum of a row's weights is 1 - (probability of the sink) + (number of visible keys) *
  // offset.
  __device__ bool clamps() const { return STATS && tau < 0; }

  // Converts s to the weights exponential(s, h) * inverse + offset. If clamps() is true, the weights are clamped to [0,
  // 1] and their sum is computed in the same loop, so that the additions overlap with the exponentials. Otherwise,
  // negative weights are not clamped here.
  template <typename Exponential>
  __device__ void compute(float (&s)[N / 2], const float (&inverse)[2], const float (&offset)[2],
                          Exponential exponential) {
    if (clamps()) {
      float total[2][2] = {};
      uint32_t alive[2] = {};
#pragma unroll
      for (int n = 0; n < N / 2; n += 2) {
        const int h = n / 2 % 2;
        s[n] = fma_clamped(exponential(s[n], h), inverse[h], offset[h]);
        s[n + 1] = fma_clamped(exponential(s[n + 1], h), inverse[h], offset[h]);
        total[h][0] += s[n];
        total[h][1] += s[n + 1];
        if constexpr (!kCountsPacked) alive[h] += alive_of_two(pack<__nv_bfloat16>(s[n], s[n + 1]));
      }
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        fence_registers(total[h]);  // prevents the compiler from moving these sums after the loop
        r.total[h] += total[h][0] + total[h][1];
      }
      if constexpr (!kCountsPacked) add_alive(alive);
      return;
    }
#pragma unroll
    for (int n = 0; n < N / 2; ++n) s[n] = fmaf(exponential(s[n], n / 2 % 2), inverse[n / 2 % 2], offset[n / 2 % 2]);
  }
  __device__ void add_alive(const uint32_t (&alive)[2]) {
#pragma unroll
    for (int h = 0; h < 2; ++h)
      r.alive[h] = static_cast<int>(__dp2a_lo(alive[h], 0x0101u, static_cast<uint32_t>(r.alive[h])));
  }

  // Counts the nonzero weights of a tile whose product has been issued. This overlaps with the product and with the
  // next scores, which are in flight.
  __device__ void count(const uint32_t (&weights)[N / 16][4]) {
    if constexpr (STATS && kCountsPacked) {
      uint32_t alive[2] = {};
#pragma unroll
      for (int k = 0; k < N / 16; ++k) {
#pragma unroll
        for (int n = 0; n < 4; ++n) alive[n % 2] += alive_of_two(weights[k][n]);
      }
      add_alive(alive);
    }
  }

  // Stores the weight on the sequence's first key. s must contain the weights of the tile that begins with this key.
  // The clamp to [0, 1] has replaced a NaN by zero; adding 0 * inverse restores the NaN.
  __device__ void take_first(const RowGroup& b, const float (&s)[N / 2], const float (&inverse)[2]) {
    if (!STATS || b.lane % 4 != 0) return;
    r.head[0] = fmaf(inverse[0], 0, s[0]);
    r.head[1] = fmaf(inverse[1], 0, s[2]);
  }

  // Completes the statistics and the output o after the last tile. base: the score (in units of log2) that was
  // subtracted from the scores of a row.
  template <int O>
  __device__ void finish(const RowGroup& b, float (&o)[O], const float (&base)[2], const float (&inverse)[2],
                         const float (&offset)[2]) {
    if constexpr (!STATS) return;
    if (clamps()) {
#pragma unroll
      for (int n = 0; n < O; ++n) o[n] = fmaf(inverse[n / 2 % 2], 0, o[n]);
    }
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      if (clamps()) {
        r.total[h] = fmaf(inverse[h], 0, r.total[h]);
      } else {  // the sum is known, so only one of the four lanes of a row contributes it
        const Keys keys = b.keys(h);
        const int visible = b.lane % 4 == 0 ? max(keys.end - keys.begin, 0) : 0;
        r.alive[h] = visible;
        const float in_sink =
            takes_sink(b.p.normalizer) ? exp2_fast(scaled_sink(b.p, b.t.head) - base[h]) * inverse[h] : 0;
        r.total[h] = visible > 0 ? fmaf(static_cast<float>(visible), offset[h], fmaf(inverse[h], 0, 1) - in_sink) : 0;
      }
    }
  }
};

}  // namespace lazy::kernels::cuda::hopper
