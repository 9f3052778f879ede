// Forward on Hopper, elastic: one warp moves tiles by TMA, CONSUMERS warpgroups of 64 rows compute with wgmma.
//
// First sweep, from the diagonal back: scores and the row's sum. Second sweep: scores again, weights = max(p + offset, 0),
// their sum over V. Three products and two exponentials a pair, where softmax attention needs two and one.
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

// A warpgroup of consumers.
template <typename T, int D>
struct Consumer : RowGroup {
  using S = ForwardShape<D>;
  static constexpr int N = S::N, A = N / 2;  // A: accumulators of a thread's scores
  ForwardShared<D>& sm;
  uint32_t sq, sk;                          // tile_start of the warpgroup's queries, of the first tile of keys

  __device__ Consumer(const Params& p, const Tile& t, ForwardShared<D>& sm) : RowGroup(p, t), sm(sm) {}
  __device__ void issue_scores(float (&s)[A], int use) {
    sm.k.wait_full(use);
    issue_product<T, D, S::M, N>(s, sq, sk + use % S::k_stages * units(S::tile_bytes));
  }
  __device__ void release_k(int use) {
    if (leader) barrier_arrive(&sm.k.empty[use % S::k_stages]);
  }
};

// Adds exp2(s c - base) to the thread's sums. Any base near the row's largest score will do, fp32 has room: the first tile's
// maximum is kept until a sum leaves the range. Eight sums side by side: a chain of dependent additions is what a warp
// would wait for.
template <int A>
__device__ void add_row_sums(const float (&s)[A], float c, float (&base)[2], float (&sum)[2]) {
  float part[2][4] = {};
#pragma unroll
  for (int n = 0; n < A; n += 8) {
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      const int h = i / 2 % 2;
      part[h][i / 4 * 2 + i % 2] += exp2_fast(fmaf(s[n + i], c, -base[h]));
    }
  }
  float all[2];
#pragma unroll
  for (int h = 0; h < 2; ++h) all[h] = (part[h][0] + part[h][1]) + (part[h][2] + part[h][3]);
  if (all[0] < 0x1p60f && all[1] < 0x1p60f) {  // false for the first tile, with base -inf, and for a NaN
    sum[0] += all[0];
    sum[1] += all[1];
    return;
  }
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    float most = -INFINITY;
#pragma unroll
    for (int n = 0; n < A; n += 4) most = fmaxf(most, fmaxf(s[n + 2 * h], s[n + 2 * h + 1]));
    most = fmaxf(most * c, base[h]);
    const float from = most > -INFINITY ? most : 0;
    sum[h] *= exp2_fast(base[h] - from);
#pragma unroll
    for (int n = 0; n < A; n += 4) {
      sum[h] += exp2_fast(fmaf(s[n + 2 * h], c, -from)) + exp2_fast(fmaf(s[n + 2 * h + 1], c, -from));
    }
    base[h] = most;
  }
}

template <typename T, int D>
__global__ void __launch_bounds__(ForwardShape<D>::threads, 1)
    forward(const __grid_constant__ Params p, const __grid_constant__ ForwardMaps maps, int tiles) {
  using S = ForwardShape<D>;
  constexpr int N = S::N, A = N / 2;
  extern __shared__ char unaligned[];
  char* const memory = unaligned + (1024 - shared_address(unaligned) % 1024) % 1024;
  __shared__ ForwardShared<D> sm;
  float* const table = reinterpret_cast<float*>(memory + S::q_bytes + (S::k_stages + S::v_stages) * S::tile_bytes);
  Tile t;
  t.head = blockIdx.y;
  t.batch = blockIdx.x / tiles;
  // The last tiles first: with a causal mask they are the longest.
  if (!locate(p, tiles - 1 - blockIdx.x % tiles, S::M, false, t)) return;
  Span span;
  {
    const int last = min(t.first + S::M, t.q_length) - 1;
    span.begin = visible(p, t, t.first).begin / N * N;
    span.tiles = (max(visible(p, t, last).end - span.begin, 0) + N - 1) / N;
  }
  if (threadIdx.x == 0) {
    barrier_init(&sm.q_full, 1);
    sm.k.init(S::consumers);
    sm.v.init(S::consumers);
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
  }
  fill_table(p, t.head, table, S::pad, threadIdx.x, S::threads);
  __syncthreads();
  const int group = warpgroup();
  char* const k_tiles = memory + S::q_bytes;
  char* const v_tiles = k_tiles + S::k_stages * S::tile_bytes;

  if (group == 0) {                         // the producer
    fewer_registers<S::consumers == 3 ? 32 : 24>();
    if (threadIdx.x != 0 || span.tiles == 0) return;
    const int kv_head = t.head / (p.heads / p.kv_heads);
    barrier_expect(&sm.q_full, S::q_bytes);
    for (int half = 0; half < S::halves; ++half) {
      for (int w = 0; w < S::consumers; ++w) {
        copy_box(memory + (half * S::M + 64 * w) * 128, &maps.q, &sm.q_full, 64 * half, t.head,
                 t.q_begin + t.first + 64 * w, t.batch);
      }
    }
    auto fetch = [&](auto& ring, char* to, const CUtensorMap* map, int stages, int use, int key) {
      ring.wait_empty(use);
      uint64_t* full = &ring.full[use % stages];
      barrier_expect(full, S::tile_bytes);
      for (int half = 0; half < S::halves; ++half) {
        copy_box(to + use % stages * S::tile_bytes + half * N * 128, map, full, 64 * half, kv_head, t.k_begin + key,
                 t.batch);
      }
    };
    for (int n = 0; n < span.tiles; ++n) fetch(sm.k, k_tiles, &maps.k, S::k_stages, n, span.key<N>(n, true));
    for (int n = 0; n < span.tiles; ++n) {
      fetch(sm.k, k_tiles, &maps.k, S::k_stages, span.tiles + n, span.key<N>(n, false));
      fetch(sm.v, v_tiles, &maps.v, S::v_stages, n, span.key<N>(n, false));
    }
    return;
  }

  more_registers<S::registers>();
  Consumer<T, D> b{p, t, sm};
  const int offset_rows = (group - 1) * 64;
  b.start(t.first + offset_rows, p.bias_window > 0 ? table + S::pad : nullptr);
  b.sq = tile_start(shared_address(memory) + offset_rows * 128);
  b.sk = tile_start(shared_address(k_tiles));
  const uint32_t sv = tile_start(shared_address(v_tiles), N * 128);
  const int lane = b.lane;
  float largest[2] = {-INFINITY, -INFINITY}, sum[2] = {}, offset[2], total[2] = {}, head[2] = {};
  unsigned dead[2] = {};                    // keys of the tiles, hidden ones too, that are not alive
  const float tau = p.tau[t.head];
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    offset[h] = portable::row_offset(p, b.keys[h], tau);
  }
  const int count = span.tiles;
  float lse[2] = {-INFINITY, -INFINITY}, o[D / 2];
#pragma unroll
  for (int n = 0; n < D / 2; ++n) o[n] = 0;
  if (count > 0) {
    barrier_wait(&sm.q_full, 0);
    for (int n = 0; n < count; ++n) {       // the other warpgroups keep the tensor cores busy meanwhile
      float s[A];
      b.issue_scores(s, n);
      wgmma_wait<0>();
      b.release_k(n);
      const float c = b.template finish<N>(s, span.key<N>(n, true));
      add_row_sums(s, c, largest, sum);
    }
    float inverse[2];
#pragma unroll
  for (int h = 0; h < 2; ++h) {
#pragma unroll
    for (int d = 1; d < 4; d *= 2) {        // four lanes share a row
      const float other = __shfl_xor_sync(~0u, largest[h], d), other_sum = __shfl_xor_sync(~0u, sum[h], d);
      const float m = fmaxf(largest[h], other);
      if (m > -INFINITY) sum[h] = sum[h] * exp2_fast(largest[h] - m) + other_sum * exp2_fast(other - m);
      largest[h] = m;
    }
    const bool empty = b.keys[h].begin >= b.keys[h].end;
    lse[h] = empty ? -INFINITY : (largest[h] + log2f(sum[h])) * kLn2;
    inverse[h] = empty ? 0 : 1 / sum[h];
    if (empty) largest[h] = 0;
  }

    uint32_t w[N / 16][4];
    auto weigh_tile = [&](float (&s)[A], int key) {
      const float c = b.template finish<N>(s, key);
      if (tau >= 0) {                       // hides what a positive tau would add to hidden keys
#pragma unroll
        for (int n = 0; n < A; ++n) {
          const int h = n / 2 % 2;
          const bool seen = !(s[n] == -INFINITY);
          const float z = fmaf(exp2_fast(fmaf(s[n], c, -largest[h])), inverse[h], offset[h]);
          s[n] = seen ? positive(z) : 0;
          dead[h] += !seen;
        }
      } else if (!p.stats) {
#pragma unroll
        for (int n = 0; n < A; ++n) {
          const int h = n / 2 % 2;
          s[n] = positive(fmaf(exp2_fast(fmaf(s[n], c, -largest[h])), inverse[h], offset[h]));
        }
      } else {
#pragma unroll
        for (int n = 0; n < A; ++n) {
          const int h = n / 2 % 2;
          const float z = fmaf(exp2_fast(fmaf(s[n], c, -largest[h])), inverse[h], offset[h]);
          s[n] = positive(z);
          dead[h] += __float_as_uint(z) >> 31;
        }
      }
      if (p.stats) {
#pragma unroll
        for (int n = 0; n < A; ++n) total[n / 2 % 2] += s[n];
        if (key == 0 && lane % 4 == 0) {
          head[0] = s[0];
          head[1] = s[2];
        }
      }
    };
    auto pack_weights = [&](const float (&s)[A]) {
#pragma unroll
      for (int k = 0; k < N / 16; ++k) {
#pragma unroll
        for (int n = 0; n < 4; ++n) w[k][n] = pack<T>(s[8 * k + 2 * n], s[8 * k + 2 * n + 1]);
      }
    };
    auto issue_sum = [&](int n) {
      sm.v.wait_full(n);
      const uint32_t tile = sv + n % S::v_stages * units(S::tile_bytes);
      wgmma_fence();
#pragma unroll
      for (int k = 0; k < N / 16; ++k) wgmma<T, 1>(o, w[k], descriptor(tile + units(k * 2048)), 1);
      wgmma_commit();
    };
    auto release_v = [&](int n) {
      if (b.leader) barrier_arrive(&sm.v.empty[n % S::v_stages]);
    };
    {
      float s[A];
      b.issue_scores(s, count);
      wgmma_wait<0>();
      b.release_k(count);
      weigh_tile(s, span.key<N>(0, false));
      pack_weights(s);
    }
    for (int n = 0; n < count - 1; ++n) {
      float s[A];
      b.issue_scores(s, count + n + 1);
      issue_sum(n);
      wgmma_wait<1>();
      b.release_k(count + n + 1);
      weigh_tile(s, span.key<N>(n + 1, false));
      wgmma_wait<0>();
      release_v(n);
      pack_weights(s);
    }
    issue_sum(count - 1);
    wgmma_wait<0>();
  }

  // Rows leave through the warp's own part of the query tile, so that global stores are whole 16 bytes.
  const int warp_row = offset_rows + threadIdx.x / 32 % 4 * 16;
#pragma unroll
  for (int n = 0; n < D / 8; ++n) {
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      *reinterpret_cast<uint32_t*>(memory + n / 8 * S::M * 128 + swizzled(warp_row + lane / 4 + 8 * h, n % 8) +
                                   lane % 4 * 4) = pack<T>(o[4 * n + 2 * h], o[4 * n + 2 * h + 1]);
    }
  }
  __syncwarp();
  T* out = static_cast<T*>(p.out.data) + q_offset(p.out, t, t.head, t.first);
#pragma unroll
  for (int n = lane; n < 16 * (D / 8); n += 32) {
    const int row = warp_row + n / (D / 8), c = n % (D / 8);
    if (t.first + row < t.q_length) {
      *reinterpret_cast<uint4*>(out + row * p.out.token + c * 8) =
          *reinterpret_cast<const uint4*>(memory + c / 8 * S::M * 128 + swizzled(row, c % 8));
    }
  }
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    total[h] += __shfl_xor_sync(~0u, total[h], 1);
    total[h] += __shfl_xor_sync(~0u, total[h], 2);
    dead[h] += __shfl_xor_sync(~0u, dead[h], 1);
    dead[h] += __shfl_xor_sync(~0u, dead[h], 2);
    if (lane % 4 != 0 || b.row(h) >= t.q_length) continue;
    const int64_t index = row_index(p, t, t.head, b.row(h));
    if (p.lse) p.lse[index] = lse[h];
    if (p.stats) {
      const int64_t part = static_cast<int64_t>(p.batch) * p.heads * p.q_length;
      p.stats[index] = head[h];
      p.stats[part + index] = 1 - total[h];
      p.stats[2 * part + index] = static_cast<float>(count * N - static_cast<int>(dead[h]));
    }
  }
}

template <typename T, int D>
void launch_forward(const Params& p, cudaStream_t stream) {
  using S = ForwardShape<D>;
  const int tiles = tile_count(p, p.q_length, S::M);
  if (tiles * p.batch == 0) return;
  const int bytes = S::bytes + S::table(p.bias_window) * 4;
  check(cudaFuncSetAttribute(forward<T, D>, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes),
        "the shared memory of the Hopper forward");
  const ForwardMaps maps{tensor_map(p, p.q, p.heads, p.q_length, 64), tensor_map(p, p.k, p.kv_heads, p.k_length, S::N),
                         tensor_map(p, p.v, p.kv_heads, p.k_length, S::N)};
  forward<T, D><<<dim3(tiles * p.batch, p.heads), S::threads, bytes, stream>>>(p, maps, tiles);
  check_launch("Hopper forward");
}

template <int D>
void run_forward(const Params& p, cudaStream_t stream) {
  if (p.dtype == DType::bf16) {
    launch_forward<__nv_bfloat16, D>(p, stream);
  } else {
    launch_forward<__half, D>(p, stream);
  }
}

}  // namespace lazy::kernels::cuda::hopper
