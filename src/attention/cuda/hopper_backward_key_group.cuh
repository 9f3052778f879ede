// Parts of the second kernel of the Hopper backward: shared memory layout, producer warp, and the work of a consumer
// warpgroup on its 64 keys.
#pragma once
#include "attention/cuda/hopper_backward_rows.cuh"
#include "attention/cuda/hopper_backward_sums.cuh"

namespace lazy::kernels::cuda::hopper {

template <int D, RowSums SUMS>
struct BackwardKeysShape {
  using BiasSums = Diagonals<SUMS>;
  static constexpr int consumers = 2, N = 64 * consumers, M = 64, threads = 128 * (consumers + 1);
  static constexpr int columns = hopper_columns(D), halves = columns / 64;
  // A stage holds a tile of queries, a tile of d_out and the row states.
  static constexpr int stages = halves == 1 ? 3 : 2;
  static constexpr int kv_bytes = N * columns * 2, q_bytes = M * columns * 2, ds_bytes = N * M * 2, pad = M + N;
  static constexpr int state_bytes = M * 16;
  static constexpr int bytes(int bias_window) {
    const int fixed = 2 * kv_bytes + stages * (2 * q_bytes + state_bytes) + 2 * ds_bytes + 1024;
    return fixed + (bias_window > 0 ? (BiasSums::floats(bias_window) + bias_window + 2 * pad) * 4 : 0);
  }
};

template <typename S>
struct BackwardKeysShared {
  uint64_t kv_full;
  Pipeline<S::stages> rows;
  Pipeline<2> ds;
};

// Layout of the block's dynamic shared memory.
template <typename S>
struct BackwardKeysMemory {
  char *k, *v, *q, *d_out, *ds, *states;
  float *diagonals, *table;
  __device__ BackwardKeysMemory(char* memory, int bias_window) {
    k = memory;
    v = k + S::kv_bytes;
    q = v + S::kv_bytes;
    d_out = q + S::stages * S::q_bytes;
    ds = d_out + S::stages * S::q_bytes;
    states = ds + 2 * S::ds_bytes;
    diagonals = reinterpret_cast<float*>(states + S::stages * S::state_bytes);
    table = diagonals + S::BiasSums::floats(bias_window);
  }
};

__device__ inline void consumer_barrier() { asm volatile("bar.sync 1, 256;" ::: "memory"); }

// A step of the sweep over the query rows processes 64 rows of one head.
struct SweepStep {
  int index, head, first;
  __device__ void advance(const Keys& rows) {
    ++index;
    if ((first += 64) == rows.end) {
      first = rows.begin;
      ++head;
    }
  }
  __device__ SweepStep before(const Keys& rows) const {
    return first == rows.begin ? SweepStep{index - 1, head - 1, rows.end - 64} : SweepStep{index - 1, head, first - 64};
  }
};

// Code of the producer thread, which loads keys and values and then the tiles of query rows. row_tile: index of the
// document's first row tile in p.row_state. row_tiles: number of row tiles per head in p.row_state.
template <typename S>
__device__ void produce_row_tiles(const Params& p, const BackwardMaps& maps, const Tile& t, int key0, SweepStep step,
                                  int steps, const Keys& rows, int row_tiles, int row_tile, BackwardKeysShared<S>& sm,
                                  const BackwardKeysMemory<S>& memory) {
  barrier_expect(&sm.kv_full, 2 * S::kv_bytes);
  for (int half = 0; half < S::halves; ++half) {
    for (int w = 0; w < S::consumers; ++w) {
      const int to = (half * S::N + 64 * w) * 128, token = t.k_begin + key0 + 64 * w;
      copy_box(memory.k + to, &maps.k, &sm.kv_full, 64 * half, t.head, token, t.batch);
      copy_box(memory.v + to, &maps.v, &sm.kv_full, 64 * half, t.head, token, t.batch);
    }
  }
  for (; step.index != steps; step.advance(rows)) {
    const int stage = step.index % S::stages;
    sm.rows.wait_empty(step.index);
    uint64_t* full = &sm.rows.full[stage];
    barrier_expect(full, 2 * S::q_bytes + S::state_bytes);
    for (int half = 0; half < S::halves; ++half) {
      const int to = stage * S::q_bytes + half * S::M * 128;
      copy_box(memory.q + to, &maps.q, full, 64 * half, step.head, t.q_begin + step.first, t.batch);
      copy_box(memory.d_out + to, &maps.d_out, full, 64 * half, step.head, t.q_begin + step.first, t.batch);
    }
    copy_bytes(memory.states + stage * S::state_bytes,
               row_state(p, t, step.head, row_tiles, row_tile + step.first / S::M), S::state_bytes, full);
  }
}

// The work of a consumer warpgroup on 64 keys. Accumulator 4 n + 2 h + e of a transposed tile belongs to key() + 8 h
// and row 8 n + column() + e. The accumulators of dK and dV leave few registers, so indices are recomputed in every
// step.
template <typename T, int D, RowSums SUMS>
struct KeyGroup {
  using S = BackwardKeysShape<D, SUMS>;
  static constexpr int N = S::N, M = S::M, A = M / 2;
  // If there are enough registers, keys and values are kept in registers as left operands of the products.
  static constexpr bool keep_left = D == 64;
  const Params& p;
  const Tile& t;
  BackwardKeysShared<S>& sm;
  const BackwardKeysMemory<S>& memory;
  int group, thread;  // group: index of the warpgroup; thread: index among the 256 consumer threads
  uint32_t k[keep_left ? D / 16 : 1][4], v[keep_left ? D / 16 : 1][4];

  __device__ int now() const {
    int x = thread;
    asm volatile("" : "+r"(x));
    return x;
  }
  // Offset, in descriptor units, of the warpgroup's part of a tile. It is recomputed at each use because the compiler
  // would otherwise keep one descriptor per product in registers.
  __device__ uint32_t own(int bytes) const {
    uint32_t x = group * descriptor_units(bytes);
    asm volatile("" : "+r"(x));
    return x;
  }
  __device__ int lane() const { return now() % 32; }
  __device__ int column() const { return 2 * (now() % 4); }
  __device__ int own_key() const { return t.first + 64 * group; }  // first key of the warpgroup
  __device__ int key() const {
    const int x = now();
    return t.first + x / 32 * 16 + x % 32 / 4;
  }
  __device__ void load_keys() {
    if constexpr (keep_left) {
      load_left<D, N>(k, shared_address(memory.k) + group * 64 * 128);
      load_left<D, N>(v, shared_address(memory.v) + group * 64 * 128);
    }
  }
  // Issues the products for the scores of a step. After the last step, the products use arbitrary data and their
  // results are not read; this avoids a branch.
  __device__ void issue_scores(float (&s)[A], int step, int steps) {
    if (step < steps) sm.rows.wait_full(step);
    const uint32_t tile = descriptor_base(shared_address(memory.q)) + step % S::stages * descriptor_units(S::q_bytes);
    if constexpr (keep_left) {
      issue_product<T, D, M>(s, k, tile);
    } else {
      issue_product<T, D, N, M>(s, descriptor_base(shared_address(memory.k)) + own(64 * 128), tile);
    }
  }
  __device__ void issue_gradients(float (&g)[A], int step) {
    const uint32_t tile =
        descriptor_base(shared_address(memory.d_out)) + step % S::stages * descriptor_units(S::q_bytes);
    if constexpr (keep_left) {
      issue_product<T, D, M>(g, v, tile);
    } else {
      issue_product<T, D, N, M>(g, descriptor_base(shared_address(memory.v)) + own(64 * 128), tile);
    }
  }
  // Issues the products for dV and dK of a step.
  __device__ void issue_sums(float (&d_v)[D / 2], float (&d_k)[D / 2], const uint32_t (&weights)[M / 16][4],
                             const uint32_t (&ds)[M / 16][4], int step) {
    const uint32_t stage = step % S::stages * descriptor_units(S::q_bytes);
    // The query rows are the inner (summed) axis of both products.
    const uint32_t q = descriptor_base(shared_address(memory.q), M * 128) + stage;
    const uint32_t d_out = descriptor_base(shared_address(memory.d_out), M * 128) + stage;
    wgmma_fence();
#pragma unroll
    for (int n = 0; n < M / 16; ++n) wgmma<T, 1>(d_v, weights[n], descriptor(d_out + descriptor_units(n * 2048)), 1);
    wgmma_commit();
#pragma unroll
    for (int n = 0; n < M / 16; ++n) wgmma<T, 1>(d_k, ds[n], descriptor(q + descriptor_units(n * 2048)), 1);
    wgmma_commit();
  }
  // Issues the product ds^T K, the block's contribution to dQ, for the warpgroup's half of the columns.
  __device__ void issue_dq(float (&d_q)[S::columns / 4], int step) {
    const uint32_t tile = descriptor_base(shared_address(memory.ds)) + step % 2 * descriptor_units(S::ds_bytes);
    const uint32_t half = descriptor_base(shared_address(memory.k), N * 128) + own(S::halves == 2 ? N * 128 : 64);
    wgmma_fence();
#pragma unroll
    for (int n = 0; n < N / 16; ++n) {
      wgmma<T, 1, 1>(d_q, descriptor(tile + descriptor_units(n * 2048)), descriptor(half + descriptor_units(n * 2048)),
                     n > 0);
    }
    wgmma_commit();
  }
  __device__ void release_rows(int step) {
    if (lane() == 0) barrier_arrive(&sm.rows.empty[step % S::stages]);
  }
  // Smallest signed distance (position of the row minus key) between the step's rows and the warpgroup's keys: its
  // first row minus the last key.
  __device__ int nearest(const SweepStep& step) const { return step.first + t.shift() - own_key() - 63; }
  // Whether 64 rows and `keys` keys contain a pair within the window of the distance bias. `first` is the position of
  // the first row minus the first key.
  __device__ bool reaches(int first, int keys) const {
    return p.bias_window > 0 && first < p.bias_window + keys - 1 && first + M - 1 >= 0;
  }
  __device__ bool is_near(const SweepStep& step) const { return reaches(nearest(step) + 63, 64); }
  // Position of the step's first row minus the block's first key. reaches() uses it to decide whether the rows of the
  // step and the keys of the whole block contain a pair within the window of the distance bias.
  __device__ int block_distance(const SweepStep& step) const { return step.first + t.shift() - t.first; }
  __device__ bool is_near_block(const SweepStep& step) const { return reaches(block_distance(step), N); }
  // Whether every row of the step sees every key of the warpgroup, so that no mask is needed.
  __device__ bool is_bare(const SweepStep& step) const {
    const int x = nearest(step);
    if (p.causal && x < 0) return false;
    if (p.window >= 0 && (x + M + 62 >= p.window || (!p.causal && x <= -p.window))) return false;
    return step.first + M <= t.q_length && own_key() + 64 <= t.k_length;
  }

  // Adds the distance biases to s if the tile has pairs within the window of the bias. Returns the factor that converts
  // s to scores in units of log2: 1 if biases were added, because s is then already scaled.
  __device__ float add_biases(float (&s)[A], const SweepStep& step) const {
    const float factor = p.scale * kLog2e;
    if (!is_near(step)) return factor;
    // The accumulators of key r + 8 and row block n have the same distances as the accumulators of key r and row block
    // n - 1, so each bias is loaded only once for both.
    const float* at = memory.table + S::pad + t.shift() - key() + column() + step.first;
    float upper[2] = {at[-8], at[-7]};
#pragma unroll
    for (int n = 0; n < M / 8; ++n) {
      const float lower[2] = {at[8 * n], at[8 * n + 1]};
#pragma unroll
      for (int e = 0; e < 2; ++e) {
        s[4 * n + e] = fmaf(s[4 * n + e], factor, lower[e]);
        s[4 * n + 2 + e] = fmaf(s[4 * n + 2 + e], factor, upper[e]);
        upper[e] = lower[e];
      }
    }
    return 1;
  }
  // Address of the states of the thread's rows.
  __device__ const float* states(int step) const {
    return reinterpret_cast<const float*>(memory.states + step % S::stages * S::state_bytes) + column();
  }
  // Converts s to f = exp2(score - lse2), where lse2 is the row's log-sum-exp in units of log2.
  __device__ void exponentials(float (&s)[A], float c, int step) const {
    const float* const state = states(step);
#pragma unroll
    for (int n = 0; n < M / 8; ++n) {
      const float2 lse2 = *reinterpret_cast<const float2*>(state + 8 * n);
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        float* x = s + 4 * n + 2 * h;
        x[0] = exp2_fast(fmaf(x[0], c, -lse2.x));
        x[1] = exp2_fast(fmaf(x[1], c, -lse2.y));
      }
    }
  }
  // Converts s, which contains f = exp2(score - lse2), to weights, and g, the gradients of the weights, to ds, the
  // gradients of the scores. With an offset, pairs with zero weight have s <= 0 after the conversion.
  __device__ void differentiate(float (&s)[A], float (&g)[A], int step) const {
    const float* const state = states(step);
    auto one = [](float& x, float& y, float factor, float center, float offset) {
      const float f = x;
      if constexpr (SUMS != RowSums::softmax) {
        x = fmaf(f, factor, offset);
        // With tau >= 0 the weight of every visible key is positive. x can then be zero only if f is zero, and in that
        // case ds is zero too.
        if (x <= 0) y = 0;
      }
      y = f * fmaf(y, factor, -center);
    };
#pragma unroll
    for (int n = 0; n < M / 8; ++n) {
      const float2 factor = *reinterpret_cast<const float2*>(state + M + 8 * n);
      const float2 center = *reinterpret_cast<const float2*>(state + 2 * M + 8 * n);
      float2 offset = {0, 0};
      if constexpr (SUMS != RowSums::softmax) offset = *reinterpret_cast<const float2*>(state + 3 * M + 8 * n);
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        const int i = 4 * n + 2 * h;
        one(s[i], g[i], factor.x, center.x, offset.x);
        one(s[i + 1], g[i + 1], factor.y, center.y, offset.y);
      }
    }
  }
  // Sets the elements of s and g to zero for pairs in which the row does not see the key, or the row or the key does
  // not exist.
  __device__ void hide(float (&s)[A], float (&g)[A], int first) const {
    const int key = this->key(), column = this->column(), at = first + t.shift() + column - key;
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const int distance = at - 8 * h;
      const int begin = p.causal ? -distance : p.window >= 0 ? 1 - distance - p.window : 0;
      int end = t.q_length - first - column;
      if (p.window >= 0) end = min(end, p.window - distance);
      if (key + 8 * h >= t.k_length) end = 0;
#pragma unroll
      for (int i = 0; i < A; ++i) {
        const int at_row = i / 4 * 8 + i % 2;
        if (i / 2 % 2 == h && (at_row < begin || at_row >= end)) s[i] = g[i] = 0;
      }
    }
  }
  __device__ uint32_t ds_tile(int step) const { return shared_address(memory.ds) + step % 2 * S::ds_bytes; }
  // Stores ds as a tile [key][row] in shared memory.
  __device__ void store_ds(const uint32_t (&ds)[M / 16][4], int step) const {
    const int x = now(), row = x / 32 * 16 + x % 16;
    const uint32_t to = ds_tile(step);
#pragma unroll
    for (int n = 0; n < M / 16; ++n) store_matrices(to + swizzled(row, 2 * n + x % 32 / 16), ds[n]);
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
  }
  // Applies the inverse rotation of RoPE to d_k.
  __device__ void rotate_keys_back(float (&d_k)[D / 2]) const {
    const int lane = this->lane(), key = t.first + thread / 32 * 16 + lane / 4;
#pragma unroll
    for (int n = 0; n < D / 16; ++n) {
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        float* const x = d_k + 4 * n + 2 * h;
        rotate_back(p, D, key + 8 * h, 8 * n + 2 * (lane % 4), x, x + D / 4);
      }
    }
  }
  // Stores d_k or d_v. The values are staged in the warp's rows of the key tile, because no thread reads the keys any
  // more.
  __device__ void store(const Tensor& to, const float (&x)[D / 2], float scale, int count) const {
    if (!to.data) return;
    __syncwarp();
    const int lane = this->lane(), first = thread / 32 * 16;
#pragma unroll
    for (int n = 0; n < D / 8; ++n) {
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        *reinterpret_cast<uint32_t*>(memory.k + n / 8 * N * 128 + swizzled(first + lane / 4 + 8 * h, n % 8) +
                                     lane % 4 * 4) = pack<T>(scale * x[4 * n + 2 * h], scale * x[4 * n + 2 * h + 1]);
      }
    }
    __syncwarp();
    T* base = static_cast<T*>(to.data) + k_offset(to, t, t.head, t.first);
    for (int n = lane; n < 16 * (D / 8); n += 32) {
      const int row = first + n / (D / 8), chunk = n % (D / 8);
      if (row < count && chunk * 8 < p.head_dim) {
        *reinterpret_cast<uint4*>(base + row * to.token + chunk * 8) =
            *reinterpret_cast<const uint4*>(memory.k + chunk / 8 * N * 128 + swizzled(row, chunk % 8));
      }
    }
  }
};

}  // namespace lazy::kernels::cuda::hopper
