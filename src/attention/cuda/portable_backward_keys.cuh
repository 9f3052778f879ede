// Second kernel of the portable backward: computes dK, dV and the fp32 sums of dQ. A block processes 64 or 128 keys (16
// MI per warp). For all query heads of the group, it sweeps over the rows that see these keys, and accumulates dK and
// dV in registers. It computes transposed scores (keys x rows), because the accumulators of the weights and of ds (the
// gradients of the scores) then have the register layout of the left operand in the products for dV and dK. ds is
// stored in shared memory only for dQ.
//
// dQ is added to the fp32 sums p.dq_sum by atomics, unless the first kernel has computed d_q. The gradient of the
// distance bias is summed along the diagonals of ds within the window of the bias. Each block writes these sums to its
// slab, without atomics.
#pragma once
#include "attention/cuda/portable_backward_sums.cuh"

namespace lazy::kernels::cuda::portable {

template <int D>
struct BackwardKeysShape {
  // A warp accumulates dK and dV of 16 MI keys in registers. At head size 256 they would not fit, so two warps share
  // the keys and each accumulates half of the dimensions.
  static constexpr int MI = portable_keys(D) / 64, halves = D == 256 ? 2 : 1;
  static constexpr int N = 64 * MI, M = D == 256 ? 16 : 32;
  static constexpr int warps = 4 * halves, threads = 32 * warps, bias_entries = M + N;
  static constexpr int blocks = D == 256 ? 1 : 2;  // blocks per multiprocessor, limited by registers
  static constexpr int own = D / halves;           // dimensions of dK and dV per warp
  static constexpr int splits = warps / (M / 16), q_dims = D / splits;  // q_dims: dimensions of dQ per warp
  static constexpr int ds_bytes = N * M * 2, state_bytes = M * 16;
  static constexpr int bytes = (2 * N + 4 * M) * D * 2 + ds_bytes + 2 * state_bytes + 2 * bias_entries * 4;
};

// Sums of ds, the gradients of the scores (16 MI keys per warp, M rows), along diagonals, for the gradient of the
// distance bias. Each warp sums its own part of ds, and after a barrier the sums of all warps are added. The order of
// all additions is fixed.
template <int MI, int M>
struct Diagonals {
  static constexpr int blocks = M / 8 + 2 * MI - 1, stride = 8 * blocks + 16;
  static constexpr int scratch = 8 + 8 * stride, count = M + 16 * MI - 1, floats = 4 * (scratch + count + 1);
  float* memory;  // initialized to zero; contains four scratch areas, the sums of four warps, and the sums by distance
  int window;

  static constexpr int bytes(int window) { return 4 * (floats + window); }
  __device__ float* part(int warp) const { return memory + 4 * scratch + warp * (count + 1); }
  __device__ float* sums() const { return memory + floats; }

  // Sums the warp's ds along diagonals. First, the 8 x 8 blocks of ds on each block diagonal are added. The rows of the
  // result are stored in the scratch area, padded with zeros (8 before, 16 after), so that each diagonal is a sum of
  // eight numbers.
  __device__ void put(int warp, int lane, const float (&ds)[MI][M / 8][4]) const {
    float* const own = memory + warp * scratch;
    float* const to = own + lane / 4 * stride + 8 + 2 * (lane % 4);
    __syncwarp();
#pragma unroll
    for (int d = 0; d < blocks; ++d) {
      float2 x = make_float2(0, 0);
#pragma unroll
      for (int j = 0; j < 2 * MI; ++j) {  // j is the index of a group of eight keys
        const int n = d - (2 * MI - 1) + j;
        if (n < 0 || n >= M / 8) continue;
        x.x += ds[j / 2][n][j % 2 * 2];
        x.y += ds[j / 2][n][j % 2 * 2 + 1];
      }
      *reinterpret_cast<float2*>(to + 8 * d) = x;
    }
    __syncwarp();
#pragma unroll
    for (int n = 0; n < (count + 31) / 32; ++n) {
      const int u = lane + 32 * n;
      if (u >= count) break;
      float sum = 0;
#pragma unroll
      for (int k = 0; k < 8; ++k) sum += own[u + 1 + k * (stride + 1)];
      part(warp)[u] = sum;
    }
  }
  // Adds the partial sums of all warps to the sums by distance. A barrier is required between put() and this call.
  // `nearest` is the signed distance from the block's last key to the first row.
  __device__ void take(int thread, int threads, int nearest) const {
    const int farthest = nearest + 64 * MI + M - 2, from = max(0, max(nearest, -farthest));
    const int last = min(window - 1, max(farthest, -nearest));
    for (int distance = from + thread; distance <= last; distance += threads) {
      float sum = 0;
      for (int side = distance; side >= -distance; side -= max(2 * distance, 1)) {
#pragma unroll
        for (int w = 0; w < 4; ++w) {
          const int u = side - nearest - 16 * MI * (3 - w);
          if (u >= 0 && u < count) sum += part(w)[u];
        }
      }
      sums()[distance] += sum;
    }
  }
};

// Returns the mask, in the format of product_nt, of the blocks of 16 keys x 16 rows that contain a pair with nonzero
// weight. For normalizers other than sparsemax and entmax-1.5, the mask contains all blocks. A NaN is treated as
// nonzero.
template <NormalizerFamily F, int MI, int M>
__device__ uint32_t alive_blocks(const float (&s)[MI][M / 8][4], const float4* states, float c) {
  if constexpr (F != NormalizerFamily::threshold) return kAllBlocks;
  const int lane = threadIdx.x % 32;
  uint32_t blocks = 0;
#pragma unroll
  for (int k = 0; k < M / 16; ++k) {
    bool alive[MI] = {};
#pragma unroll
    for (int n = 2 * k; n < 2 * k + 2; ++n) {
#pragma unroll
      for (int x = 0; x < 2; ++x) {
        const float anchor = states[8 * n + 2 * (lane % 4) + x].x;
#pragma unroll
        for (int m = 0; m < MI; ++m) {
#pragma unroll
          for (int e = x; e < 4; e += 2) alive[m] |= !(fmaf(s[m][n][e], c, -anchor) <= 0);
        }
      }
    }
#pragma unroll
    for (int m = 0; m < MI; ++m) blocks |= (__any_sync(~0u, alive[m]) ? 1u : 0u) << (k * MI + m);
  }
  return blocks;
}

// Processes the query-key pairs of a tile. On input, s contains the products q . k (or the scores, if `c` is one) and g
// the products dO . v. On output, s contains the weights and g contains ds, the gradients of the scores. VARIANT: true
// for entmax15 and for normalizers that take tau.
template <NormalizerFamily F, bool VARIANT, int MI, int M>
__device__ void compute_pair_weights(float (&s)[MI][M / 8][4], float (&g)[MI][M / 8][4], const float4* states,
                                     float c) {
  const int lane = threadIdx.x % 32;
#pragma unroll
  for (int n = 0; n < M / 8; ++n) {
#pragma unroll
    for (int x = 0; x < 2; ++x) {
      const float4 state = states[8 * n + 2 * (lane % 4) + x];
#pragma unroll
      for (int m = 0; m < MI; ++m) {
#pragma unroll
        for (int e = x; e < 4; e += 2) {
          float &pair = s[m][n][e], &ds = g[m][n][e];
          const float d = fmaf(pair, c, -state.x);
          if constexpr (F == NormalizerFamily::exponential) {
            const float f = exp2_fast(d), weight = fmaf(state.y, f, state.w);
            if constexpr (VARIANT) ds = weight <= 0 ? 0 : ds;
            pair = VARIANT ? positive(weight) : weight;
            ds = f * (ds - state.z);
          } else {
            const PairWeight w = pair_weight<F>(pair * c, d, state.y, state.w, 0, VARIANT);
            pair = w.alive ? positive(w.weight) : 0;
            ds = w.factor * ((w.alive ? ds : 0) - state.z);
          }
        }
      }
    }
  }
}

// Addresses of a head's first row. They are stored in shared memory because the main loop has no free registers.
template <typename T>
struct HeadRows {
  const T *q, *d_out;
  const float4* states;
  int64_t dq_sums;  // offset in p.dq_sum (not a pointer, so that the compiler knows that the sums are in global memory)
};

template <typename T, int D, NormalizerFamily F, bool CAPPED>
__global__ void __launch_bounds__(BackwardKeysShape<D>::threads, BackwardKeysShape<D>::blocks)
    backward_keys(const Params p, int tiles, int partial_step) {
  using S = BackwardKeysShape<D>;
  constexpr int MI = S::MI, N = S::N, M = S::M;
  extern __shared__ __align__(128) char memory[];
  const uint32_t sk = shared_address(memory), sv = sk + N * D * 2, sq = sv + N * D * 2, s_do = sq + 2 * M * D * 2;
  char* const ds_tile = memory + (2 * N + 4 * M) * D * 2;
  const uint32_t s_ds = shared_address(ds_tile), s_states = s_ds + S::ds_bytes;
  const float4* const states = reinterpret_cast<const float4*>(ds_tile + S::ds_bytes);
  float* const add = reinterpret_cast<float*>(ds_tile + S::ds_bytes + 2 * S::state_bytes);
  const Diagonals<MI, M> diagonals{add + 2 * S::bias_entries, p.bias_window};
  __shared__ HeadRows<T> head_rows[2];
  __shared__ float slope_sums[S::threads];  // one element per thread
  const int kv_head = blockIdx.y, group = p.heads / p.kv_heads, lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const int warp_key = warp % 4 * 16 * MI, half = warp / 4;
  const bool want_bias = p.bias_slabs && p.bias_window > 0;
  const bool variant = (F == NormalizerFamily::exponential && takes_tau(p.normalizer)) ||
                       (F == NormalizerFamily::threshold && p.normalizer == Normalizer::entmax15);
  const float unit = score_unit<F>(p);
  // Whether this kernel adds to dQ. For sparsemax and entmax-1.5, the first kernel computes d_q.
  const bool adds_dq = F != NormalizerFamily::threshold && p.dq_sum;
  Tile t;
  t.batch = blockIdx.x / tiles;
  const bool there = locate(p, blockIdx.x % tiles, N, true, t);
  const int key0 = there ? t.first : 0, count = there ? min(N, t.k_length - key0) : 0;
  const Keys rows = there ? rows_seeing(p, t, key0, key0 + count - 1) : Keys{0, 0};
  if (rows.begin >= rows.end && want_bias) {
    for (int n = threadIdx.x; n < group * p.bias_window; n += S::threads) {
      p.bias_slabs[(static_cast<int64_t>(blockIdx.x) * p.heads + kv_head * group) * p.bias_window + n] = 0;
    }
  }
  if (!there) return;
  const int row_begin = rows.begin / M * M;
  if (rows.begin < rows.end) {  // with zero rows, no code would wait for these copies before the memory is reused
    load_tile<T, N, D, S::threads>(sk, static_cast<const T*>(p.k.data) + k_offset(p.k, t, kv_head, key0), p.k.token,
                                   count);
    load_tile<T, N, D, S::threads>(sv, static_cast<const T*>(p.v.data) + k_offset(p.v, t, kv_head, key0), p.v.token,
                                   count);
    if (want_bias) {
      for (int n = threadIdx.x; n < diagonals.floats + p.bias_window; n += S::threads) diagonals.memory[n] = 0;
    }
  }

  int head = kv_head * group;
  float next_biases[2];
  auto fetch = [&](int first, int stage) {
    const HeadRows<T>& from = head_rows[head % 2];
    load_tile<T, M, D, S::threads>(sq + stage * M * D * 2, from.q + first * p.q.token, p.q.token, t.q_length - first);
    load_tile<T, M, D, S::threads>(s_do + stage * M * D * 2, from.d_out + first * p.d_out.token, p.d_out.token,
                                   t.q_length - first);
    if (threadIdx.x < M) {  // the states, q and dO of rows that do not exist are zero
      const int row = first + threadIdx.x;
      copy_async(s_states + stage * S::state_bytes + threadIdx.x * 16, from.states + min(row, t.q_length - 1),
                 row < t.q_length);
    }
    copies_commit();
    if (any_score_bias(p, t, first, M, key0, N)) {
      for (int n = 0; n < 2; ++n) {
        const int x = threadIdx.x + n * S::threads;
        if (x < S::bias_entries) next_biases[n] = score_bias(p, head, first + t.shift() - key0 + x - (N - 1), unit);
      }
    }
  };
  auto publish = [&](int stage) {
    for (int n = 0; n < 2; ++n) {
      const int x = threadIdx.x + n * S::threads;
      if (x < S::bias_entries) add[stage * S::bias_entries + x] = next_biases[n];
    }
  };

  float d_k[MI][S::own / 8][4], d_v[MI][S::own / 8][4];
  clear(d_k);
  clear(d_v);
  for (; head < (kv_head + 1) * group && rows.begin < rows.end; ++head) {
    slope_sums[threadIdx.x] = 0;
    if (threadIdx.x == 0) {
      head_rows[head % 2] = {static_cast<const T*>(p.q.data) + q_offset(p.q, t, head, 0),
                             static_cast<const T*>(p.d_out.data) + q_offset(p.d_out, t, head, 0),
                             &row_state(p, t, head, 0), dq_blocks(p, t, head, 0, D)};
    }
    __syncthreads();  // wait, because other warps may still read the buffers
    fetch(row_begin, 0);
    publish(0);
    int stage = 0;
    for (int first = row_begin; first < rows.end; first += M) {
      copies_wait<0>();
      __syncthreads();
      if (first + M < rows.end) fetch(first + M, stage ^ 1);
      float s[MI][M / 8][4], g[MI][M / 8][4];
      clear(s);
      clear(g);
      product_nt<T, D, MI, M / 16>(s, sk, warp_key, sq + stage * M * D * 2);
      float c = p.scale * unit;
      if constexpr (CAPPED) {
        cap(p.softcap, s);
        c = unit;
      }
      if (any_score_bias(p, t, first, M, key0, N)) {
        // The scale and the bias are applied with a single rounding, as in RowSweep::scores. The weights are then equal
        // to the weights from which the norm and center of the row were computed.
        const float* table = add + stage * S::bias_entries + N - 1 - warp_key - lane / 4 + 2 * (lane % 4);
#pragma unroll
        for (int m = 0; m < MI; ++m) {
#pragma unroll
          for (int n = 0; n < M / 8; ++n) {
#pragma unroll
            for (int e = 0; e < 4; ++e) {
              s[m][n][e] = fmaf(s[m][n][e], c, table[8 * (n - 2 * m - e / 2) + e % 2]);
            }
          }
        }
        c = 1;
      }
      const uint32_t blocks = alive_blocks<F, MI, M>(s, states + stage * M, c);
      product_nt<T, D, MI, M / 16>(g, sv, warp_key, s_do + stage * M * D * 2, blocks);
      if (variant) {
        compute_pair_weights<F, true, MI, M>(s, g, states + stage * M, c);
      } else {
        compute_pair_weights<F, false, MI, M>(s, g, states + stage * M, c);
      }
      if (first + M > t.q_length || !all_visible(p, t, first, M, key0, N)) {
#pragma unroll
        for (int n = 0; n < M / 8; ++n) {
#pragma unroll
          for (int x = 0; x < 2; ++x) {
            const int row = first + 8 * n + 2 * (lane % 4) + x;
            const Keys seen = row < t.q_length ? visible(p, t, row) : Keys{0, 0};
#pragma unroll
            for (int m = 0; m < MI; ++m) {
#pragma unroll
              for (int e = x; e < 4; e += 2) {
                const int key = key0 + warp_key + 16 * m + lane / 4 + 8 * (e / 2);
                if (key < seen.begin || key >= seen.end) s[m][n][e] = g[m][n][e] = 0;
              }
            }
          }
        }
      }
      if (p.d_alibi_slopes) {
        const int distance = first + t.shift() - key0 - warp_key + 2 * (lane % 4) - lane / 4;
        float sum = 0;
#pragma unroll
        for (int m = 0; m < MI; ++m) {
#pragma unroll
          for (int n = 0; n < M / 8; ++n) {
#pragma unroll
            for (int e = 0; e < 4; ++e) {
              sum -= g[m][n][e] * static_cast<float>(abs(distance + 8 * (n - 2 * m - e / 2) + e % 2));
            }
          }
        }
        slope_sums[threadIdx.x] += sum;
      }
      const int nearest = first + t.shift() - (key0 + N - 1), farthest = first + M - 1 + t.shift() - key0;
      const bool near = want_bias && nearest < p.bias_window && farthest > -p.bias_window;
      if (near && half == 0) diagonals.put(warp, lane, g);
      uint32_t weights[MI][M / 16][4], ds[MI][M / 16][4];
#pragma unroll
      for (int m = 0; m < MI; ++m) {
#pragma unroll
        for (int k = 0; k < M / 16; ++k) {
          as_left<T>(weights[m][k], s[m], k);
          if constexpr (!CAPPED) as_left<T>(ds[m][k], g[m], k);
        }
      }
      if constexpr (CAPPED) {  // recompute the products, because there are not enough registers to keep them
        clear(s);
        product_nt<T, D, MI, M / 16>(s, sk, warp_key, sq + stage * M * D * 2);
        uncap(p.softcap, s, g);
#pragma unroll
        for (int m = 0; m < MI; ++m) {
#pragma unroll
          for (int k = 0; k < M / 16; ++k) as_left<T>(ds[m][k], g[m], k);
        }
      }
      if (adds_dq && half == 0) {
        char* const to = ds_tile + warp_key * M * 2 + (lane % 4) * 4;
#pragma unroll
        for (int m = 0; m < MI; ++m) {
#pragma unroll
          for (int n = 0; n < M / 4; ++n) {
            *reinterpret_cast<uint32_t*>(to + (16 * m + n % 2 * 8) * M * 2 + at<M>(lane / 4, n / 2)) =
                ds[m][n / 4][n % 4];
          }
        }
      }
      product_nn<T, D, MI, M / 16, S::own / 16>(d_v, weights, s_do + stage * M * D * 2, half * S::own / 8, blocks);
      product_nn<T, D, MI, M / 16, S::own / 16>(d_k, ds, sq + stage * M * D * 2, half * S::own / 8, blocks);
      if (near || adds_dq) __syncthreads();
      if (near) diagonals.take(threadIdx.x, S::threads, nearest);
      const int row0 = warp / S::splits * 16;
      // p.dq_sum has no memory for blocks of 16 rows that begin after rows.end.
      if (adds_dq && first + row0 < rows.end) {
        float d_q[S::q_dims / 8][4] = {};
        const int dim0 = warp % S::splits * S::q_dims;
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
        float* const sums = p.dq_sum + head_rows[head % 2].dq_sums + (first + row0) * D + dim0 / 8 * 128;
#pragma unroll
        for (int n = 0; n < S::q_dims / 8; ++n) add_block(sums + 128 * n, lane, d_q[n]);
      }
      stage ^= 1;
      if (first + M < rows.end) publish(stage);
    }
    if (p.d_alibi_slopes) {
      __syncthreads();
      if (warp == 0) {
        float sum = 0;
        // Only the sums of warps 0 to 3 are added, because warps 4 to 7 have the same sums.
        for (int n = 0; n < 4; ++n) sum += slope_sums[32 * n + lane];
        for (int d = 1; d < 32; d *= 2) sum += __shfl_xor_sync(~0u, sum, d);
        if (lane == 0) p.partial[(static_cast<int64_t>(2) * p.heads + head) * partial_step + blockIdx.x] = sum;
      }
      __syncthreads();
    }
    if (want_bias) {
      __syncthreads();
      float* slab = p.bias_slabs + (static_cast<int64_t>(blockIdx.x) * p.heads + head) * p.bias_window;
      for (int n = threadIdx.x; n < p.bias_window; n += S::threads) {
        slab[n] = diagonals.sums()[n];
        diagonals.sums()[n] = 0;
      }
    }
  }
  copies_wait<0>();
  auto store = [&](const Tensor& to, const float(&x)[MI][S::own / 8][4], float scale) {
    if (!to.data) return;
    __syncthreads();
#pragma unroll
    for (int m = 0; m < MI; ++m) {
#pragma unroll
      for (int n = 0; n < S::own / 8; ++n) {
#pragma unroll
        for (int h = 0; h < 2; ++h) {
          const int key = warp_key + 16 * m + lane / 4 + 8 * h;
          *reinterpret_cast<uint32_t*>(memory + at<D>(key, half * S::own / 8 + n) + (lane % 4) * 4) =
              pack<T>(scale * x[m][n][2 * h], scale * x[m][n][2 * h + 1]);
        }
      }
    }
    __syncthreads();
    T* base = static_cast<T*>(to.data) + k_offset(to, t, kv_head, key0);
    for (int n = threadIdx.x; n < N * (D / 8); n += S::threads) {
      const int key = n / (D / 8), chunk = n % (D / 8);
      if (key < count) {
        *reinterpret_cast<uint4*>(base + key * to.token + chunk * 8) =
            *reinterpret_cast<const uint4*>(memory + at<D>(key, chunk));
      }
    }
  };
  store(p.d_k, d_k, p.scale);
  store(p.d_v, d_v, 1);
}

}  // namespace lazy::kernels::cuda::portable
