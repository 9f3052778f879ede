// Second kernel of the Hopper backward: a block keeps 128 keys, 64 a warpgroup, and sweeps over the rows (of every head of
// the group) that see them, 64 at a time. Scores are transposed, keys x rows, so that weights and ds are the left sides of
// dV and dK as the accumulators hold them; ds goes to shared memory for dQ alone. dQ is added by vector reductions to
// fp32 sums laid out as the accumulators are (hopper_dq): a thread's numbers are four in a row. SOFTMAX: a row's state is
// backward_delta's, not backward_rows'.
#pragma once
#include "attention/cuda/hopper_backward_rows.cuh"

namespace lazy::kernels::cuda::hopper {

template <int D>
struct BackwardKeysShape {
  static constexpr int consumers = 2, N = 64 * consumers, M = 64, halves = D / 64, threads = 128 * (consumers + 1);
  static constexpr int stages = D == 64 ? 3 : 2;   // each a tile of queries, one of d_out, their rows' state
  static constexpr int kv_bytes = N * D * 2, q_bytes = M * D * 2, ds_bytes = N * M * 2, pad = M + N;
  static constexpr int state_bytes = M * 16, bias_step = M + 1, bias_bytes = consumers * 64 * bias_step * 4;
  static constexpr int bytes(int bias_window) {
    const int fixed = 2 * kv_bytes + stages * (2 * q_bytes + state_bytes) + 2 * ds_bytes + 1024;
    return fixed + (bias_window > 0 ? bias_bytes + (bias_window + 2 * pad + consumers * bias_window) * 4 : 0);
  }
};

template <int D>
struct BackwardKeysShared {
  uint64_t kv_full;
  Ring<BackwardKeysShape<D>::stages> rows;
};

__device__ inline void group_barrier(int group) {
  asm volatile("bar.sync %0, 128;" ::"r"(group + 2) : "memory");
}
__device__ inline void consumer_barrier() { asm volatile("bar.sync 1, 256;" ::: "memory"); }

__device__ inline void reduce_add(float* to, float a, float b, float c, float d) {
  asm volatile("red.global.add.v4.f32 [%0], {%1, %2, %3, %4};" ::"l"(to), "f"(a), "f"(b), "f"(c), "f"(d) : "memory");
}

// Where the sums of dQ of a tile of 64 rows lie: (batch, head, tile) then 64 D numbers, 256 threads x D / 4.
__device__ inline float* hopper_dq(const Params& p, const Tile& t, int D, int head, int tiles, int tile) {
  return p.dq_sum + ((static_cast<int64_t>(t.batch) * p.heads + head) * tiles + tile) * 64 * D;
}

template <typename T, int D, bool SOFTMAX>
__global__ void __launch_bounds__(BackwardKeysShape<D>::threads, 1)
    backward_keys(const __grid_constant__ Params p, const __grid_constant__ BackwardMaps maps, int tiles, int row_tiles) {
  using S = BackwardKeysShape<D>;
  constexpr int N = S::N, M = S::M, A = M / 2;
  extern __shared__ char unaligned[];
  char* const memory = unaligned + (1024 - shared_address(unaligned) % 1024) % 1024;
  __shared__ BackwardKeysShared<D> sm;
  char* const q_tiles = memory + 2 * S::kv_bytes;
  char* const do_tiles = q_tiles + S::stages * S::q_bytes;
  char* const ds_tiles = do_tiles + S::stages * S::q_bytes;
  char* const states = ds_tiles + 2 * S::ds_bytes;
  float* const bias_tile = reinterpret_cast<float*>(states + S::stages * S::state_bytes);
  float* const bias_sums = bias_tile + S::bias_bytes / 4;
  float* const table = bias_sums + S::consumers * p.bias_window;
  const int kv_head = blockIdx.y, heads = p.heads / p.kv_heads, group = warpgroup();
  const bool want_bias = p.bias_slabs && p.bias_window > 0;
  auto slab = [&](int head) {               // two of 64 keys each: a slab a warpgroup
    return p.bias_slabs + (static_cast<int64_t>(blockIdx.x) * p.heads + head) * p.bias_window;
  };
  Tile t;
  t.batch = blockIdx.x / tiles;
  t.head = kv_head;
  const bool exists = locate(p, blockIdx.x % tiles, N, true, t);
  const int key0 = exists ? t.first : 0, count = exists ? min(N, t.k_length - key0) : 0;
  const Keys rows = exists ? rows_seeing(p, t, key0, key0 + count - 1) : Keys{0, 0};
  const int row_begin = rows.begin / M * M, many = rows.end > rows.begin ? (rows.end - row_begin + M - 1) / M : 0;
  const int steps = heads * many;
  if (steps == 0 && want_bias) {
    for (int n = threadIdx.x; n < heads * p.bias_window; n += S::threads) slab(kv_head * heads)[n] = 0;
  }
  if (!exists) return;
  const int tile0 = p.cu_q ? tiles_before(p, t.document, M) : 0;  // of this document's rows
  if (threadIdx.x == 0) {
    barrier_init(&sm.kv_full, 1);
    sm.rows.init(S::consumers);
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
  }
  __syncthreads();

  if (group == 0) {                         // the producer
    fewer_registers<24>();
    if (threadIdx.x != 0 || steps == 0) return;  // a copy still under way would meet the zeros that are stored
    barrier_expect(&sm.kv_full, 2 * S::kv_bytes);
    for (int half = 0; half < S::halves; ++half) {
      copy_box(memory + half * N * 128, &maps.k, &sm.kv_full, 64 * half, kv_head, t.k_begin + key0, t.batch);
      copy_box(memory + S::kv_bytes + half * N * 128, &maps.v, &sm.kv_full, 64 * half, kv_head, t.k_begin + key0, t.batch);
    }
    for (int n = 0; n < steps; ++n) {
      const int head = kv_head * heads + n / many, first = row_begin + n % many * M, stage = n % S::stages;
      sm.rows.wait_empty(n);
      uint64_t* full = &sm.rows.full[stage];
      barrier_expect(full, 2 * S::q_bytes + S::state_bytes);
      for (int half = 0; half < S::halves; ++half) {
        const int to = stage * S::q_bytes + half * M * 128;
        copy_box(q_tiles + to, &maps.q, full, 64 * half, head, t.q_begin + first, t.batch);
        copy_box(do_tiles + to, &maps.d_out, full, 64 * half, head, t.q_begin + first, t.batch);
      }
      copy_bytes(states + stage * S::state_bytes, p.row_state + row_index(p, t, head, first), S::state_bytes, full);
    }
    return;
  }

  more_registers<240>();
  const int w = group - 1, lane = threadIdx.x % 32, warp = threadIdx.x / 32 % 4, thread = threadIdx.x % 128;
  const int own_key = key0 + 64 * w;        // the warpgroup's first key
  const int key_of = own_key + warp * 16 + lane / 4;  // the thread's keys: this one and eight later
  const uint32_t sk = tile_start(shared_address(memory) + 64 * w * 128), sv = sk + units(S::kv_bytes);
  const uint32_t sq = tile_start(shared_address(q_tiles)), s_do = tile_start(shared_address(do_tiles));
  // Queries and d_out as right sides whose rows are the inner axis, and the warpgroup's half of the dims of all keys.
  const uint32_t sq_t = tile_start(shared_address(q_tiles), M * 128), s_do_t = tile_start(shared_address(do_tiles), M * 128);
  const uint32_t s_ds = tile_start(shared_address(ds_tiles));
  const uint32_t half_k = tile_start(shared_address(memory) + w * (D == 128 ? N * 128 : 64), N * 128);
  float* const own_sums = bias_sums + w * p.bias_window;
  float* const own_tile = bias_tile + w * 64 * S::bias_step;
  float d_k[D / 2], d_v[D / 2];
#pragma unroll
  for (int n = 0; n < D / 2; ++n) d_k[n] = d_v[n] = 0;
  if (want_bias) {
    for (int n = thread; n < p.bias_window; n += 128) own_sums[n] = 0;
  }
  if (steps > 0) barrier_wait(&sm.kv_full, 0);
  const float factor = p.scale * kLog2e;
  int head = -1;
  for (int step = 0; step < steps; ++step) {
    const int stage = step % S::stages, first = row_begin + step % many * M;
    if (step % many == 0) {                 // another head
      head = kv_head * heads + step / many;
      consumer_barrier();
      fill_table(p, head, table, S::pad, threadIdx.x - 128, 256);
      consumer_barrier();
    }
    float s[A], g[A];
    sm.rows.wait_full(step);
    issue_product<T, D, N, M>(s, sk, sq + stage * units(S::q_bytes));
    issue_product<T, D, N, M>(g, sv, s_do + stage * units(S::q_bytes));
    wgmma_wait<1>();
    const int nearest = first + t.shift() - (own_key + 63), farthest = first + M - 1 + t.shift() - own_key;
    const bool in_window = nearest < p.bias_window && farthest >= 0;
    const bool full = first + M <= t.q_length && all_visible(p, t, first, M, own_key, 64);
    float c = factor;
    if (p.bias_window > 0 && in_window) {
      // Key r + 8 at row block n meets the distances of key r at block n - 1.
      const float* at = table + S::pad + first + t.shift() - key_of + 2 * (lane % 4);
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
      c = 1;
    }
    uint32_t weights[M / 16][4], ds[M / 16][4];
    const float4* state = reinterpret_cast<const float4*>(states + stage * S::state_bytes);
    unsigned hidden = 0;                    // a bit for every accumulator
    if (!full) {
#pragma unroll
      for (int n = 0; n < M / 8; ++n) {
#pragma unroll
        for (int e = 0; e < 2; ++e) {
          const int row = first + 8 * n + 2 * (lane % 4) + e;
          const Keys seen = row < t.q_length ? visible(p, t, row) : Keys{0, 0};
#pragma unroll
          for (int h = 0; h < 2; ++h) {
            const int key = key_of + 8 * h;
            if (key < seen.begin || key >= seen.end) hidden |= 1u << (4 * n + 2 * h + e);
          }
        }
      }
    }
    // lse2, 1 / norm, center, offset of each row; softmax: lse2, factor, center.
#pragma unroll
    for (int n = 0; n < M / 8; ++n) {
#pragma unroll
      for (int e = 0; e < 2; ++e) {
        const float lse2 = state[8 * n + 2 * (lane % 4) + e].x;
#pragma unroll
        for (int h = 0; h < 2; ++h) s[4 * n + 2 * h + e] = exp2_fast(fmaf(s[4 * n + 2 * h + e], c, -lse2));
      }
    }
    wgmma_wait<0>();
#pragma unroll
    for (int n = 0; n < M / 8; ++n) {
#pragma unroll
      for (int e = 0; e < 2; ++e) {
        const float4 row = state[8 * n + 2 * (lane % 4) + e];
#pragma unroll
        for (int h = 0; h < 2; ++h) {
          const int i = 4 * n + 2 * h + e;
          if constexpr (SOFTMAX) {
            g[i] = s[i] * fmaf(g[i], row.y, -row.z);
            continue;
          }
          const float probability = s[i] * row.y, z = probability + row.w;
          s[i] = positive(z);
          // With tau >= 0 every key is alive; z is then zero only where the probability, hence ds, is zero as well.
          g[i] = probability * ((z <= 0 ? 0 : g[i]) - row.z);  // exactly zero where a row has one key
        }
      }
    }
    if (!full) {
#pragma unroll
      for (int i = 0; i < A; ++i) {
        if (hidden >> i & 1) s[i] = g[i] = 0;
      }
    }
    if (want_bias && in_window) {
#pragma unroll
      for (int i = 0; i < A; ++i) {
        own_tile[(warp * 16 + lane / 4 + 8 * (i / 2 % 2)) * S::bias_step + i / 4 * 8 + 2 * (lane % 4) + i % 2] = g[i];
      }
    }
#pragma unroll
    for (int k = 0; k < M / 16; ++k) {
#pragma unroll
      for (int n = 0; n < 4; ++n) {
        weights[k][n] = pack<T>(s[8 * k + 2 * n], s[8 * k + 2 * n + 1]);
        ds[k][n] = pack<T>(g[8 * k + 2 * n], g[8 * k + 2 * n + 1]);
      }
    }
    wgmma_fence();
#pragma unroll
    for (int k = 0; k < M / 16; ++k) {
      wgmma<T, 1>(d_v, weights[k], descriptor(s_do_t + stage * units(S::q_bytes) + units(k * 2048)), 1);
    }
#pragma unroll
    for (int k = 0; k < M / 16; ++k) {
      wgmma<T, 1>(d_k, ds[k], descriptor(sq_t + stage * units(S::q_bytes) + units(k * 2048)), 1);
    }
    wgmma_commit();
    char* const ds_tile = ds_tiles + step % 2 * S::ds_bytes;  // [key][row]
#pragma unroll
    for (int k = 0; k < M / 16; ++k) {
#pragma unroll
      for (int n = 0; n < 4; ++n) {
        const int key = 64 * w + warp * 16 + lane / 4 + 8 * (n % 2);
        *reinterpret_cast<uint32_t*>(ds_tile + swizzled(key, 2 * k + n / 2) + lane % 4 * 4) = ds[k][n];
      }
    }
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
    consumer_barrier();
    float d_q[D / 4];
    wgmma_fence();
#pragma unroll
    for (int k = 0; k < N / 16; ++k) {      // this warpgroup's half of the dims
      wgmma<T, 1, 1>(d_q, descriptor(s_ds + step % 2 * units(S::ds_bytes) + units(k * 2048)),
                     descriptor(half_k + units(k * 2048)), k > 0);
    }
    wgmma_commit();
    if (want_bias && in_window) {           // meanwhile: sums of ds along the diagonals, 64 x 64
      group_barrier(w);
      const int x = thread, distance = nearest + x;  // diagonal: row - key = x - 63
      if (x < 127 && distance >= 0 && distance < p.bias_window) {
        float sum = 0;
        for (int key = max(0, 63 - x); key < min(64, 127 - x); ++key) sum += own_tile[key * S::bias_step + key + x - 63];
        own_sums[distance] += sum;
      }
      group_barrier(w);
    }
    wgmma_wait<0>();
    if (thread == 0) barrier_arrive(&sm.rows.empty[stage]);
    if (p.dq_sum) {
      float* to = hopper_dq(p, t, D, head, row_tiles, tile0 + first / M) + (w * 128 + thread) * 4;
#pragma unroll
      for (int n = 0; n < D / 16; ++n) {
        reduce_add(to + n * 1024, d_q[4 * n], d_q[4 * n + 1], d_q[4 * n + 2], d_q[4 * n + 3]);
      }
    }
    if (want_bias && step % many == many - 1) {
      consumer_barrier();
      for (int n = threadIdx.x - 128; n < p.bias_window; n += 256) {
        slab(head)[n] = bias_sums[n] + bias_sums[p.bias_window + n];
        bias_sums[n] = bias_sums[p.bias_window + n] = 0;
      }
      consumer_barrier();
    }
  }

  // Through the warp's own rows of the key tile, which nobody reads any more once both warpgroups are here.
  consumer_barrier();
  auto store = [&](const Tensor& to, const float (&x)[D / 2], float scale) {
    if (!to.data) return;
    __syncwarp();
    const int first = 64 * w + warp * 16;
#pragma unroll
    for (int n = 0; n < D / 8; ++n) {
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        *reinterpret_cast<uint32_t*>(memory + n / 8 * N * 128 + swizzled(first + lane / 4 + 8 * h, n % 8) + lane % 4 * 4) =
            pack<T>(scale * x[4 * n + 2 * h], scale * x[4 * n + 2 * h + 1]);
      }
    }
    __syncwarp();
    T* base = static_cast<T*>(to.data) + k_offset(to, t, kv_head, key0);
    for (int n = lane; n < 16 * (D / 8); n += 32) {
      const int key = first + n / (D / 8), chunk = n % (D / 8);
      if (key < count) {
        *reinterpret_cast<uint4*>(base + key * to.token + chunk * 8) =
            *reinterpret_cast<const uint4*>(memory + chunk / 8 * N * 128 + swizzled(key, chunk % 8));
      }
    }
  };
  store(p.d_k, d_k, p.scale);
  store(p.d_v, d_v, 1);
}

// d_q = scale * sums, a block a tile of 64 rows.
template <typename T, int D>
__global__ void __launch_bounds__(256) finish_dq(const __grid_constant__ Params p, int row_tiles) {
  Tile t;
  t.head = blockIdx.y;
  t.batch = blockIdx.x / row_tiles;
  const int tile = blockIdx.x % row_tiles;
  if (!locate(p, tile, 64, false, t)) return;
  const int w = threadIdx.x / 128, warp = threadIdx.x / 32 % 4, lane = threadIdx.x % 32;
  const float* from = hopper_dq(p, t, D, t.head, row_tiles, tile) + threadIdx.x * 4;
  T* to = static_cast<T*>(p.d_q.data) + q_offset(p.d_q, t, t.head, t.first);
#pragma unroll
  for (int n = 0; n < D / 16; ++n) {
    const float4 x = *reinterpret_cast<const float4*>(from + n * 1024);
    const int row = warp * 16 + lane / 4, column = w * D / 2 + 8 * n + 2 * (lane % 4);
    if (t.first + row < t.q_length) {
      *reinterpret_cast<uint32_t*>(to + row * p.d_q.token + column) = pack<T>(p.scale * x.x, p.scale * x.y);
    }
    if (t.first + row + 8 < t.q_length) {
      *reinterpret_cast<uint32_t*>(to + (row + 8) * p.d_q.token + column) = pack<T>(p.scale * x.z, p.scale * x.w);
    }
  }
}

}  // namespace lazy::kernels::cuda::hopper
