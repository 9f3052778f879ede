// Second kernel of the backward on tensor cores: a block keeps 64 keys, sweeps over the rows (of every head of the
// group) that see them and sums dK and dV in registers. It works on transposed scores, keys x rows, whose accumulators
// are the left sides of both sums as they stand; only dQ needs them in shared memory.
//
// dQ is added to fp32 sums by atomics (p.dq_sum), or was made by the first kernel. The gradient of the distance bias is
// summed along the diagonals of fp32 tiles, only within the window, into the block's own slab; no atomics.
#pragma once
#include "attention/cuda/portable_normalizers.cuh"

namespace lazy::kernels::cuda::portable {

template <int D>
struct BackwardKeysShape {
  // At head size 256 a warp's dK and dV would not fit in registers: two warps share keys, each with half of the dims.
  static constexpr int N = kPortableKeys, M = D <= 96 ? 64 : D == 128 ? 32 : 16, halves = D == 256 ? 2 : 1;
  static constexpr int warps = 4 * halves, threads = 32 * warps, bias_entries = M + N;
  static constexpr int own = D / halves;                                // dims of dK and dV a warp keeps
  static constexpr int splits = warps / (M / 16), q_dims = D / splits;  // of dQ a warp makes
  static constexpr int ds_step = M + 1;                                 // of the fp32 tile
  static constexpr int ds_bytes = N * ds_step * 4;
  static constexpr int bytes = (2 * N + 4 * M) * D * 2 + ds_bytes + 2 * bias_entries * 4 + 2 * 4 * M * 4;
};

template <typename T, int D, NormalizerFamily F>
__global__ void __launch_bounds__(BackwardKeysShape<D>::threads)
    backward_keys(const Params p, int tiles, int partial_step) {
  using S = BackwardKeysShape<D>;
  constexpr int N = S::N, M = S::M;
  extern __shared__ __align__(128) char memory[];
  const uint32_t sk = shared_address(memory), sv = sk + N * D * 2, sq = sv + N * D * 2, s_do = sq + 2 * M * D * 2;
  char* const ds_tile = memory + (2 * N + 4 * M) * D * 2;
  const uint32_t s_ds = shared_address(ds_tile);
  float* const add = reinterpret_cast<float*>(ds_tile + S::ds_bytes);
  float* const row_state = add + 2 * S::bias_entries;  // [stage][anchor, norm, center, offset][M]
  float* const bias_sums = row_state + 2 * 4 * M;
  __shared__ float warp_sums[S::warps];
  const int kv_head = blockIdx.y, group = p.heads / p.kv_heads, lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const int warp_key = warp % 4 * 16, half = warp / 4;
  const bool want_bias = p.bias_slabs && p.bias_window > 0, squared = p.normalizer == Normalizer::entmax15;
  const float unit = score_unit<F>(p);
  Tile t;
  t.batch = blockIdx.x / tiles;
  if (!locate(p, blockIdx.x % tiles, N, true, t)) {
    if (want_bias) {
      for (int n = threadIdx.x; n < group * p.bias_window; n += S::threads) {
        p.bias_slabs[(static_cast<int64_t>(blockIdx.x) * p.heads + kv_head * group) * p.bias_window + n] = 0;
      }
    }
    return;
  }
  const int key0 = t.first, count = min(N, t.k_length - key0);
  const Keys rows = rows_seeing(p, t, key0, key0 + count - 1);
  const int row_begin = rows.begin / M * M, row_tiles = rows.end > rows.begin ? (rows.end - row_begin + M - 1) / M : 0;
  const int steps = group * row_tiles;
  if (steps > 0) {  // else nobody would wait for them, and zeros go to their place
    load_tile<T, N, D, S::threads>(sk, static_cast<const T*>(p.k.data) + k_offset(p.k, t, kv_head, key0), p.k.token,
                                   count);
    load_tile<T, N, D, S::threads>(sv, static_cast<const T*>(p.v.data) + k_offset(p.v, t, kv_head, key0), p.v.token,
                                   count);
  }

  float next_state[4], next_biases[2];
  auto fetch = [&](int step, int stage) {
    const int head = kv_head * group + step / row_tiles, first = row_begin + step % row_tiles * M;
    load_tile<T, M, D, S::threads>(sq + stage * M * D * 2,
                                   static_cast<const T*>(p.q.data) + q_offset(p.q, t, head, first), p.q.token,
                                   t.q_length - first);
    load_tile<T, M, D, S::threads>(s_do + stage * M * D * 2,
                                   static_cast<const T*>(p.d_out.data) + q_offset(p.d_out, t, head, first),
                                   p.d_out.token, t.q_length - first);
    copies_commit();
    if (threadIdx.x < M) {
      const int row = first + threadIdx.x;
      next_state[0] = INFINITY;  // rows that do not exist, or see nothing: p = 0
      next_state[1] = next_state[2] = 0;
      next_state[3] = F == NormalizerFamily::sigmoid ? -INFINITY : 0;
      if (row < t.q_length) {
        const int64_t index = row_index(p, t, head, row);
        const float anchor = row_anchor<F>(p, index);
        if (anchor > -INFINITY) next_state[0] = anchor;
        next_state[1] = p.row_norm[index];
        next_state[2] = p.row_center[index];
        if (has_offset<F>(p)) {
          const float tau = p.normalizer == Normalizer::elastic ? p.tau[head] : 0;
          next_state[3] = row_offset<F>(p, visible(p, t, row), tau, anchor);
        }
        if (F == NormalizerFamily::exponential && next_state[1] == 0) next_state[3] += 1;  // its only key's probability
      }
    }
    if (any_score_bias(p, t, first, M, key0, N)) {
      for (int n = 0; n < 2; ++n) {
        const int x = threadIdx.x + n * S::threads;
        if (x < S::bias_entries) next_biases[n] = score_bias(p, head, first + t.shift() - key0 + x - (N - 1), unit);
      }
    }
  };
  auto publish = [&](int stage) {
    if (threadIdx.x < M) {
      for (int n = 0; n < 4; ++n) row_state[(stage * 4 + n) * M + threadIdx.x] = next_state[n];
    }
    for (int n = 0; n < 2; ++n) {
      const int x = threadIdx.x + n * S::threads;
      if (x < S::bias_entries) add[stage * S::bias_entries + x] = next_biases[n];
    }
  };

  float d_k[1][S::own / 8][4], d_v[1][S::own / 8][4];
  clear(d_k);
  clear(d_v);
  float slope_sum = 0;
  if (want_bias) {
    for (int n = threadIdx.x; n < p.bias_window; n += S::threads) bias_sums[n] = 0;
  }
  if (steps > 0) {
    fetch(0, 0);
    publish(0);
  }
  for (int step = 0; step < steps; ++step) {
    const int stage = step % 2, head = kv_head * group + step / row_tiles, first = row_begin + step % row_tiles * M;
    copies_wait<0>();
    __syncthreads();
    if (step + 1 < steps) fetch(step + 1, stage ^ 1);
    float s[1][M / 8][4], g[1][M / 8][4];
    clear(s);
    clear(g);
    product_nt<T, D, 1, M / 16>(s, sk, warp_key, sq + stage * M * D * 2);
    product_nt<T, D, 1, M / 16>(g, sv, warp_key, s_do + stage * M * D * 2);
    const bool has_bias = any_score_bias(p, t, first, M, key0, N), full = all_visible(p, t, first, M, key0, N);
    const float lowest = p.normalizer != Normalizer::elastic || p.tau[head] >= 0 ? -1 : 0;
    const float c = p.scale * unit;
    const float* state = row_state + stage * 4 * M;
#pragma unroll
    for (int n = 0; n < M / 8; ++n) {
#pragma unroll
      for (int x = 0; x < 2; ++x) {
        const int column = 8 * n + 2 * (lane % 4) + x;  // a row of the problem
        const float anchor = state[column], norm = state[M + column], center = state[2 * M + column];
        const float offset = state[3 * M + column];
        Keys seen{0, 0};
        if (!full && first + column < t.q_length) seen = visible(p, t, first + column);
#pragma unroll
        for (int e = x; e < 4; e += 2) {
          const int key = warp_key + lane / 4 + 8 * (e / 2);
          // One rounding, as in RowSweep::scores: the weight that the row's norm and center were made of.
          const float score = fmaf(s[0][n][e], c, has_bias ? add[stage * S::bias_entries + column - key + N - 1] : 0);
          PairWeight pair = pair_weight<F>(score, score - anchor, norm, offset, lowest, squared);
          if (!full && (key0 + key < seen.begin || key0 + key >= seen.end)) {
            pair.factor = 0;
            pair.alive = false;
          }
          s[0][n][e] = pair.alive ? positive(pair.weight) : 0;
          g[0][n][e] = pair.factor * ((pair.alive ? g[0][n][e] : 0) - center);  // exactly zero where a row has one key
          if (p.d_alibi_slopes) {
            slope_sum -= g[0][n][e] * static_cast<float>(abs(first + column + t.shift() - key0 - key));
          }
        }
      }
    }
    product_nn<T, D, 1, M / 16, S::own / 16>(d_v, s, s_do + stage * M * D * 2, half * S::own / 8);
    product_nn<T, D, 1, M / 16, S::own / 16>(d_k, g, sq + stage * M * D * 2, half * S::own / 8);

    const int nearest = first + t.shift() - (key0 + N - 1), farthest = first + M - 1 + t.shift() - key0;
    if (want_bias && nearest < p.bias_window && farthest > -p.bias_window) {
      float* tile = reinterpret_cast<float*>(ds_tile);
      if (half == 0) {
#pragma unroll
        for (int n = 0; n < M / 8; ++n) {
#pragma unroll
          for (int e = 0; e < 4; ++e) {
            tile[(warp_key + lane / 4 + 8 * (e / 2)) * S::ds_step + 8 * n + 2 * (lane % 4) + e % 2] = g[0][n][e];
          }
        }
      }
      __syncthreads();
      const int x = threadIdx.x, distance = nearest + x;  // diagonal: row - key = x - (N - 1)
      float sum = 0;
      if (x < M + N - 1 && abs(distance) < p.bias_window) {
        for (int key = max(0, N - 1 - x); key < min(N, M + N - 1 - x); ++key) {
          sum += tile[key * S::ds_step + key + x - (N - 1)];
        }
        if (distance >= 0) bias_sums[distance] += sum;
      }
      __syncthreads();
      if (x < M + N - 1 && distance < 0 && -distance < p.bias_window) bias_sums[-distance] += sum;
    }
    if (p.dq_sum) {
      if (half == 0) {
#pragma unroll
        for (int n = 0; n < M / 8; ++n) {
#pragma unroll
          for (int h = 0; h < 2; ++h) {
            const int key = warp_key + lane / 4 + 8 * h;
            *reinterpret_cast<uint32_t*>(ds_tile + at<M>(key, n) + (lane % 4) * 4) =
                pack<T>(g[0][n][2 * h], g[0][n][2 * h + 1]);
          }
        }
      }
      __syncthreads();
      float d_q[S::q_dims / 8][4] = {};
      const int row0 = warp / S::splits * 16, dim0 = warp % S::splits * S::q_dims;
#pragma unroll
      for (int k = 0; k < N / 16; ++k) {
        uint32_t a[4];
        load_matrices_transposed(a, s_ds + at<M>(16 * k + lane % 8 + lane / 16 * 8, row0 / 8 + lane / 8 % 2));
#pragma unroll
        for (int n = 0; n < S::q_dims / 16; ++n) {
          uint32_t y[4];
          load_matrices_transposed(y, sk + at<D>(16 * k + lane % 16, dim0 / 8 + 2 * n + lane / 16));
          mma<T>(d_q[2 * n], a, y[0], y[1]);
          mma<T>(d_q[2 * n + 1], a, y[2], y[3]);
        }
      }
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        const int row = first + row0 + lane / 4 + 8 * h;
        if (row >= t.q_length) continue;
        float* to = p.dq_sum + row_index(p, t, head, row) * D + dim0 + 2 * (lane % 4);
#pragma unroll
        for (int n = 0; n < S::q_dims / 8; ++n) {
          atomicAdd(to + 8 * n, d_q[n][2 * h]);
          atomicAdd(to + 8 * n + 1, d_q[n][2 * h + 1]);
        }
      }
    }
    if (step + 1 < steps) publish(stage ^ 1);
    if (step % row_tiles == row_tiles - 1) {  // the head's last tile
      if (p.d_alibi_slopes) {
        if (half != 0) slope_sum = 0;
        for (int d = 1; d < 32; d *= 2) slope_sum += __shfl_xor_sync(~0u, slope_sum, d);
        if (lane == 0) warp_sums[warp] = slope_sum;
        slope_sum = 0;
        __syncthreads();
        if (threadIdx.x == 0) {
          p.partial[(static_cast<int64_t>(2) * p.heads + head) * partial_step + blockIdx.x] =
              (warp_sums[0] + warp_sums[1]) + (warp_sums[2] + warp_sums[3]);
        }
      }
      if (want_bias) {
        __syncthreads();
        float* slab = p.bias_slabs + (static_cast<int64_t>(blockIdx.x) * p.heads + head) * p.bias_window;
        for (int n = threadIdx.x; n < p.bias_window; n += S::threads) {
          slab[n] = bias_sums[n];
          bias_sums[n] = 0;
        }
      }
    }
  }
  if (steps == 0 && want_bias) {
    for (int n = threadIdx.x; n < group * p.bias_window; n += S::threads) {
      p.bias_slabs[(static_cast<int64_t>(blockIdx.x) * p.heads + kv_head * group) * p.bias_window + n] = 0;
    }
  }
  copies_wait<0>();
  auto store = [&](const Tensor& to, const float(&x)[1][S::own / 8][4], float scale) {
    if (!to.data) return;
    __syncthreads();
#pragma unroll
    for (int n = 0; n < S::own / 8; ++n) {
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        *reinterpret_cast<uint32_t*>(memory + at<D>(warp_key + lane / 4 + 8 * h, half * S::own / 8 + n) +
                                     (lane % 4) * 4) = pack<T>(scale * x[0][n][2 * h], scale * x[0][n][2 * h + 1]);
      }
    }
    __syncthreads();
    T* base = static_cast<T*>(to.data) + k_offset(to, t, kv_head, key0);
    for (int n = threadIdx.x; n < N * (D / 8); n += S::threads) {
      const int key = n / (D / 8), c2 = n % (D / 8);
      if (key < count) {
        *reinterpret_cast<uint4*>(base + key * to.token + c2 * 8) =
            *reinterpret_cast<const uint4*>(memory + at<D>(key, c2));
      }
    }
  };
  store(p.d_k, d_k, p.scale);
  store(p.d_v, d_v, 1);
}

}  // namespace lazy::kernels::cuda::portable
