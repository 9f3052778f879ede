// The two matrix products of the plain kernels, in fp32 for any input type. A block has 256 threads arranged as 16 x 16
// with indices (ty, tx). A thread holds rows 4 ty + a and columns tx + 16 b of a 64 x 64 tile of scores, and rows 4 ty
// + a and columns 64 n + 4 tx + b of a 64 x (64 N) tile of sums, for a, b < 4 and n < N.
#pragma once
#include "attention/cuda/weights.cuh"

namespace lazy::kernels::cuda::plain {

constexpr int kTile = kPlainRows;
constexpr int kThreads = 256;
constexpr int kDepth = 32;                // head dimensions per chunk
constexpr int kChunkStride = kDepth + 4;  // padded so that float4 loads of eight rows use different banks
constexpr int kStripStride = kTile + 4;

struct alignas(16) ProductShared {  // the alignment is for float4 loads
  union {
    struct {
      float a[kTile * kChunkStride], b[kTile * kChunkStride];
    };
    float values[kTile * kTile];  // right operand of weighted_sum, layout [inner][column]
  };
  float strip[kTile * kStripStride];  // left operand of weighted_sum (weights or ds), layout [row of the sum][inner]
};

// Computes acc += A B^T over `dim` dimensions. a(row, d) and b(row, d) must return the elements, and zero outside of
// the matrices.
template <typename A, typename B>
__device__ void scores_product(float (&acc)[4][4], ProductShared& sm, int dim, const A& a, const B& b) {
  const int tx = threadIdx.x % 16, ty = threadIdx.x / 16;
  for (int d0 = 0; d0 < dim; d0 += kDepth) {
    __syncthreads();
    for (int n = threadIdx.x; n < kTile * kDepth; n += kThreads) {
      const int row = n / kDepth, d = n % kDepth;
      sm.a[row * kChunkStride + d] = d0 + d < dim ? a(row, d0 + d) : 0;
      sm.b[row * kChunkStride + d] = d0 + d < dim ? b(row, d0 + d) : 0;
    }
    __syncthreads();
#pragma unroll
    for (int d = 0; d < kDepth; d += 4) {
      float4 x[4], y[4];
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        x[i] = *reinterpret_cast<const float4*>(&sm.a[(4 * ty + i) * kChunkStride + d]);
        y[i] = *reinterpret_cast<const float4*>(&sm.b[(tx + 16 * i) * kChunkStride + d]);
      }
#pragma unroll
      for (int i = 0; i < 4; ++i) {
#pragma unroll
        for (int j = 0; j < 4; ++j) {
          acc[i][j] += x[i].x * y[j].x + x[i].y * y[j].y + x[i].z * y[j].z + x[i].w * y[j].w;
        }
      }
    }
  }
}

// Writes the calling thread's 4 x 4 scores of a tile to the strip, which is the left operand of weighted_sum,
// optionally transposed.
__device__ inline void put_strip(ProductShared& sm, const float (&x)[4][4], bool transposed) {
  const int tx = threadIdx.x % 16, ty = threadIdx.x / 16;
  __syncthreads();
#pragma unroll
  for (int i = 0; i < 4; ++i) {
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      const int row = 4 * ty + i, column = tx + 16 * j;
      sm.strip[transposed ? column * kStripStride + row : row * kStripStride + column] = x[i][j];
    }
  }
}

// Computes acc += strip V. v(inner, column) must return the elements of V, and zero outside of the matrix.
template <int N, typename V>
__device__ void weighted_sum(float (&acc)[N][4][4], ProductShared& sm, int dim, const V& v) {
  const int tx = threadIdx.x % 16, ty = threadIdx.x / 16;
#pragma unroll
  for (int n = 0; n < N; ++n) {
    __syncthreads();
    for (int i = threadIdx.x; i < kTile * kTile; i += kThreads) {
      const int inner = i / kTile, column = 64 * n + i % kTile;
      sm.values[i] = column < dim ? v(inner, column) : 0;
    }
    __syncthreads();
#pragma unroll 4
    for (int k = 0; k < kTile; k += 4) {
      alignas(16) float w[4][4];
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        *reinterpret_cast<float4*>(w[i]) = *reinterpret_cast<const float4*>(&sm.strip[(4 * ty + i) * kStripStride + k]);
      }
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        const float4 x = *reinterpret_cast<const float4*>(&sm.values[(k + j) * kTile + 4 * tx]);
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          acc[n][i][0] += w[i][j] * x.x;
          acc[n][i][1] += w[i][j] * x.y;
          acc[n][i][2] += w[i][j] * x.z;
          acc[n][i][3] += w[i][j] * x.w;
        }
      }
    }
  }
}

// row_sum returns the sum, and row_max the maximum, over the 16 threads that have the same rows.
__device__ inline float row_sum(float x) {
  for (int d = 1; d < 16; d *= 2) x += __shfl_xor_sync(~0u, x, d);
  return x;
}
__device__ inline float row_max(float x) {
  for (int d = 1; d < 16; d *= 2) x = fmaxf(x, __shfl_xor_sync(~0u, x, d));
  return x;
}

// Computes the calling thread's part of the tile of dot products between the query rows from t.first on and the keys
// from key0 on.
__device__ inline void tile_products(const Params& p, const Tile& t, ProductShared& sm, int key0, float (&s)[4][4]) {
  const int kv_head = t.head / (p.heads / p.kv_heads);
#pragma unroll
  for (int i = 0; i < 4; ++i) {
#pragma unroll
    for (int j = 0; j < 4; ++j) s[i][j] = 0;
  }
  scores_product(
      s, sm, p.head_dim,
      [&](int r, int d) {
        return t.first + r < t.q_length ? load(p.q.data, q_offset(p.q, t, t.head, t.first + r) + d * p.q.dim, p.dtype)
                                        : 0.0f;
      },
      [&](int c, int d) {
        return key0 + c < t.k_length && key0 + c >= 0
                   ? load(p.k.data, k_offset(p.k, t, kv_head, key0 + c) + d * p.k.dim, p.dtype)
                   : 0.0f;
      });
}

// Computes the calling thread's scores of the tile that begins with row t.first and key key0. CAPPED: the problem has a
// softcap; instantiations with CAPPED = false do not read p.softcap.
template <bool CAPPED>
__device__ void tile_scores(const Params& p, const Tile& t, ProductShared& sm, const Row (&row)[4], int key0,
                            float (&s)[4][4]) {
  tile_products(p, t, sm, key0, s);
  if constexpr (CAPPED) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
#pragma unroll
      for (int j = 0; j < 4; ++j) s[i][j] = capped(p.softcap, s[i][j]);
    }
  }
  const float scale = CAPPED ? 1 : p.scale;
#pragma unroll
  for (int i = 0; i < 4; ++i) {
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      s[i][j] = finish_score(p, row[i], t.head, key0 + static_cast<int>(threadIdx.x % 16) + 16 * j, s[i][j], scale);
    }
  }
}

// Converts gradients of the tile's capped scores to gradients of scale * (q . k). To obtain gradients of q . k, the
// caller multiplies by the scale.
__device__ inline void uncap_gradients(const Params& p, const Tile& t, ProductShared& sm, int key0, float (&ds)[4][4]) {
  float dots[4][4];
  tile_products(p, t, sm, key0, dots);
#pragma unroll
  for (int i = 0; i < 4; ++i) {
#pragma unroll
    for (int j = 0; j < 4; ++j) ds[i][j] = uncapped_gradient(p.softcap, dots[i][j], ds[i][j]);
  }
}

// Computes dO V^T, the gradients of the weights, for the calling thread's part of the tile.
__device__ inline void tile_weight_gradients(const Params& p, const Tile& t, ProductShared& sm, int key0,
                                             float (&g)[4][4]) {
  const int kv_head = t.head / (p.heads / p.kv_heads);
#pragma unroll
  for (int i = 0; i < 4; ++i) {
#pragma unroll
    for (int j = 0; j < 4; ++j) g[i][j] = 0;
  }
  scores_product(
      g, sm, p.value_dim,
      [&](int r, int d) {
        return t.first + r < t.q_length
                   ? load(p.d_out.data, q_offset(p.d_out, t, t.head, t.first + r) + d * p.d_out.dim, p.dtype)
                   : 0.0f;
      },
      [&](int c, int d) {
        return key0 + c < t.k_length && key0 + c >= 0
                   ? load(p.v.data, k_offset(p.v, t, kv_head, key0 + c) + d * p.v.dim, p.dtype)
                   : 0.0f;
      });
}

__device__ inline void make_rows(const Params& p, const Tile& t, Row (&row)[4]) {
#pragma unroll
  for (int i = 0; i < 4; ++i) row[i] = make_row(p, t, t.head, t.first + 4 * static_cast<int>(threadIdx.x / 16) + i);
}

// Range of the keys that at least one row of the tile sees, with the begin rounded down to a multiple of kTile.
__device__ inline Keys tile_keys(const Params& p, const Tile& t) {
  const int last = min(t.first + kTile, t.q_length) - 1;
  Keys keys{visible(p, t, t.first).begin, visible(p, t, last).end};
  keys.begin = keys.begin / kTile * kTile;
  return keys;
}

// Stores the first `count` rows of a tile of sums, multiplied by `scale`. `offset` is the offset of the first row, and
// `step` is the row stride; both are in elements.
template <int N>
__device__ void store_rows(const Tensor& to, const Params& p, int dim, float scale, const float (&acc)[N][4][4],
                           int count, int64_t offset, int64_t step) {
  const int tx = threadIdx.x % 16, ty = threadIdx.x / 16;
#pragma unroll
  for (int n = 0; n < N; ++n) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      if (4 * ty + i >= count) continue;
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        const int column = 64 * n + 4 * tx + j;
        if (column < dim) {
          store(to.data, offset + (4 * ty + i) * step + column * to.dim, p.dtype, scale * acc[n][i][j]);
        }
      }
    }
  }
}

}  // namespace lazy::kernels::cuda::plain
