// The loop of a block of query rows over its keys. The portable forward and the first kernel of the portable backward
// use it.
#pragma once
#include "attention/cuda/portable.cuh"

namespace lazy::kernels::cuda::portable {

// Returns the maximum of the calling thread's scores in accumulator row h (0 or 1).
template <int N>
__device__ float largest_of(const float (&s)[N][4], int h) {
  float most = -INFINITY;
#pragma unroll
  for (int n = 0; n < N; ++n) most = fmaxf(most, fmaxf(s[n][2 * h], s[n][2 * h + 1]));
  return most;
}

// Loop of a block of query rows over tiles of keys. S is the shape of the kernel: MI is the number of 16-row tiles per
// warp, M the number of rows per block, N the number of keys per tile, `bias_entries` the size of the bias table, and
// `threads` the number of threads per block. CAPPED: the problem has a softcap; instantiations with CAPPED = false do
// not read p.softcap.
template <typename T, int D, typename S, bool CAPPED = false>
struct RowSweep {
  static constexpr int MI = S::MI, N = S::N, NT = N / 16, M = S::M;
  // Number of entries of the bias table that each thread loads.
  static constexpr int bias_loads = (S::bias_entries + S::threads - 1) / S::threads;
  const Params& p;
  float unit;  // factor by which scores are multiplied: score_unit() in portable_normalizers.cuh
  Tile t;
  const T *k, *v;
  uint32_t sq, sk, sv;
  float* add;
  int warp_row, lane;  // warp_row: the warp's first row within the tile
  Keys span;           // keys that the tile's rows see; `begin` is rounded down to a multiple of N
  Keys keys[MI][2];    // visible keys of the thread's rows
  float next_biases[bias_loads];

  // Layout of shared memory: queries, then `keep` bytes for the caller, then keys, values and bias tables.
  static constexpr int bytes = (M + 4 * N) * D * 2 + 2 * S::bias_entries * 4;
  __device__ bool start(char* memory, int keep, int tiles) {
    if (!find(tiles)) return false;
    load(memory, keep);
    return true;
  }
  // start() calls find() and load(). find() returns false if the block has no tile.
  __device__ bool find(int tiles) {
    t.head = blockIdx.y;
    t.batch = blockIdx.x / tiles;
    lane = threadIdx.x % 32;
    warp_row = threadIdx.x / 32 * 16 * MI;
    // Start with the last tiles: with a causal mask they have the most keys.
    return locate(p, tiles - 1 - blockIdx.x % tiles, M, false, t);
  }
  __device__ void load(char* memory, int keep) {
    const int kv_head = t.head / (p.heads / p.kv_heads);
    sq = shared_address(memory);
    sk = sq + M * D * 2 + keep;
    sv = sk + 2 * N * D * 2;
    add = reinterpret_cast<float*>(memory + M * D * 2 + keep + 4 * N * D * 2);
    k = static_cast<const T*>(p.k.data) + k_offset(p.k, t, kv_head, 0);
    v = static_cast<const T*>(p.v.data) + k_offset(p.v, t, kv_head, 0);
    load_tile<T, M, D, S::threads>(sq, static_cast<const T*>(p.q.data) + q_offset(p.q, t, t.head, t.first), p.q.token,
                                   t.q_length - t.first);
    span = {visible(p, t, t.first).begin / N * N, visible(p, t, min(t.first + M, t.q_length) - 1).end};
#pragma unroll
    for (int m = 0; m < MI; ++m) {
#pragma unroll
      for (int h = 0; h < 2; ++h) keys[m][h] = row(m, h) < t.q_length ? visible(p, t, row(m, h)) : Keys{0, 0};
    }
  }
  // Row of the document to which the accumulators [m][..][2 h] and [m][..][2 h + 1] belong.
  __device__ int row(int m, int h) const { return t.first + warp_row + 16 * m + lane / 4 + 8 * h; }

  // Stores the rows, beginning with o[FROM], multiplied by `scale`. They are staged in the warp's part of the query
  // tile in shared memory, so that global stores write 16 bytes. `wanted`: whether to store the rows of this warp. All
  // threads of the block must call this function.
  template <int FROM = 0, int A>
  __device__ void store(char* memory, const Tensor& to, const float (&o)[A][D / 8][4], float scale,
                        bool wanted = true) {
    copies_commit();  // if there was no sweep, the copy of the queries is still pending
    copies_wait<0>();
    __syncthreads();
    if (!wanted) return;
#pragma unroll
    for (int m = 0; m < MI; ++m) {
#pragma unroll
      for (int n = 0; n < D / 8; ++n) {
#pragma unroll
        for (int h = 0; h < 2; ++h) {
          *reinterpret_cast<uint32_t*>(memory + at<D>(row(m, h) - t.first, n) + (lane % 4) * 4) =
              pack<T>(scale * o[FROM + m][n][2 * h], scale * o[FROM + m][n][2 * h + 1]);
        }
      }
    }
    __syncwarp();
    T* rows = static_cast<T*>(to.data) + q_offset(to, t, t.head, t.first);
    for (int n = lane; n < 16 * MI * (D / 8); n += 32) {
      const int r = warp_row + n / (D / 8), c = n % (D / 8);
      if (t.first + r < t.q_length) {
        *reinterpret_cast<uint4*>(rows + r * to.token + c * 8) = *reinterpret_cast<const uint4*>(memory + at<D>(r, c));
      }
    }
  }

  __device__ void fetch(int key, int stage, bool values) {
    load_tile<T, N, D, S::threads>(sk + stage * N * D * 2, k + key * p.k.token, p.k.token, t.k_length - key);
    if (values)
      load_tile<T, N, D, S::threads>(sv + stage * N * D * 2, v + key * p.v.token, p.v.token, t.k_length - key);
    copies_commit();
    // Entry x of the bias table is for the pairs with row - key = x - (N - 1), where `row` and `key` are indices within
    // the tile of scores.
    if (any_score_bias(p, t, t.first, M, key, N)) {
      for (int n = 0; n < bias_loads; ++n) {
        const int x = threadIdx.x + n * S::threads;
        if (x < S::bias_entries) next_biases[n] = score_bias(p, t.head, t.first + t.shift() - key + x - (N - 1), unit);
      }
    }
  }
  __device__ void publish_biases(int stage) {
    for (int n = 0; n < bias_loads; ++n) {
      const int x = threadIdx.x + n * S::threads;
      if (x < S::bias_entries) add[stage * S::bias_entries + x] = next_biases[n];
    }
  }

  // Computes the scores of a tile and returns a factor: s * factor is the score times `unit`, or -inf if masked. If
  // there is neither a bias nor a mask, s contains the raw products; the caller can then apply the factor at no extra
  // cost, in an FMA that also subtracts the maximum.
  __device__ float scores(float (&s)[MI][2 * NT][4], int key, int stage) {
    clear(s);
    product_nt<T, D, MI, NT>(s, sq, warp_row, sk + stage * N * D * 2);
    return finish_scores(s, key, stage);
  }
  // Second part of scores(): converts the products of queries and keys in s to scores.
  __device__ float finish_scores(float (&s)[MI][2 * NT][4], int key, int stage) {
    float c = p.scale * unit;
    if constexpr (CAPPED) {
      cap(p.softcap, s);
      c = unit;
    }
    const bool has_bias = any_score_bias(p, t, t.first, M, key, N), full = all_visible(p, t, t.first, M, key, N);
    if (!has_bias && full && c > 0) return c;
    const float* table = add + stage * S::bias_entries + N - 1 + warp_row + lane / 4 - 2 * (lane % 4);
#pragma unroll
    for (int m = 0; m < MI; ++m) {
#pragma unroll
      for (int n = 0; n < 2 * NT; ++n) {
#pragma unroll
        for (int e = 0; e < 4; ++e) {
          s[m][n][e] = fmaf(s[m][n][e], c, has_bias ? table[16 * m + e / 2 * 8 - 8 * n - e % 2] : 0);
        }
      }
    }
    if (full) return 1;
#pragma unroll
    for (int m = 0; m < MI; ++m) {
#pragma unroll
      for (int n = 0; n < 2 * NT; ++n) {
#pragma unroll
        for (int e = 0; e < 4; ++e) {
          const int at_key = key + 8 * n + 2 * (lane % 4) + e % 2;
          if (at_key < keys[m][e / 2].begin || at_key >= keys[m][e / 2].end) s[m][n][e] = -INFINITY;
        }
      }
    }
    return 1;
  }

  // Calls work(key, stage) for every tile of keys. key: first key of the tile. stage: index of the buffer (0 or 1) that
  // contains the tile. values: whether to load the tiles of V, too.
  template <typename Work>
  __device__ void sweep(bool values, const Work& work) {
    __syncthreads();  // wait, because other warps may still read the buffers
    if (span.begin >= span.end) return;
    fetch(span.begin, 0, values);
    publish_biases(0);
    int stage = 0;
    for (int key = span.begin; key < span.end; key += N, stage ^= 1) {
      copies_wait<0>();
      __syncthreads();
      if (key + N < span.end) fetch(key + N, stage ^ 1, values);
      work(key, stage);
      if (key + N < span.end) publish_biases(stage ^ 1);
    }
  }
};

// quad_max and quad_sum return the maximum and the sum over the four adjacent lanes that share a row.
__device__ inline float quad_max(float x) {
  x = fmaxf(x, __shfl_xor_sync(~0u, x, 1));
  return fmaxf(x, __shfl_xor_sync(~0u, x, 2));
}
__device__ inline float quad_sum(float x) {
  x += __shfl_xor_sync(~0u, x, 1);
  return x + __shfl_xor_sync(~0u, x, 2);
}

}  // namespace lazy::kernels::cuda::portable
