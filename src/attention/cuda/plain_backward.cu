// Backward for every normalizer, in two kernels, and a separate kernel for the gradient of the distance bias. The first
// kernel processes tiles of rows: one sweep over the keys computes the sums for each row's gradient, and a second sweep
// computes dQ and the partial sums of d_tau, d_sink and d_alibi_slopes. The second kernel processes tiles of keys and
// computes dK and dV. The kernels do not use atomics, and every sum has a fixed order.
#include "attention/cuda/launchers.h"
#include "attention/cuda/plain_products.cuh"

namespace lazy::kernels::cuda {

namespace plain {

// Returns the sum of a value over all rows of the block, in thread 0 only. x contains the values of the calling
// thread's four rows; the 16 threads that share these rows must pass the same values.
__device__ float block_sum(ProductShared& sm, const float (&x)[4]) {
  __syncthreads();
  if (threadIdx.x % 16 == 0) sm.strip[threadIdx.x / 16] = (x[0] + x[1]) + (x[2] + x[3]);
  __syncthreads();
  float sum = 0;
  if (threadIdx.x == 0) {
    for (int n = 0; n < 16; ++n) sum += sm.strip[n];
  }
  return sum;
}

template <int N, bool CAPPED>
__global__ void __launch_bounds__(kThreads) backward_rows(Params p, int tiles) {
  __shared__ ProductShared sm;
  Tile t;
  t.head = blockIdx.y;
  t.batch = blockIdx.x / tiles;
  float* partial = p.partial + static_cast<int64_t>(t.head) * gridDim.x + blockIdx.x;
  const int64_t part = static_cast<int64_t>(p.heads) * gridDim.x;
  if (!locate(p, tiles - 1 - blockIdx.x % tiles, kTile, false, t)) {
    if (threadIdx.x == 0) partial[0] = partial[part] = partial[2 * part] = 0;
    return;
  }
  Row row[4];
  make_rows(p, t, row);
  const Keys keys = tile_keys(p, t);
  const int tx = threadIdx.x % 16, ty = threadIdx.x / 16, kv_head = t.head / (p.heads / p.kv_heads);
  float lse[4], center[4], inverse[4];
  {
    float f[4] = {}, fg[4] = {}, g[4] = {}, tau[4], sink[4];
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const bool inside = t.first + 4 * ty + i < t.q_length && p.normalizer != Normalizer::sigmoid;
      lse[i] = inside ? p.lse[row_index(p, t, t.head, t.first + 4 * ty + i)] : 0;
    }
    for (int key = keys.begin; key < keys.end; key += kTile) {
      float s[4][4], dw[4][4];
      tile_scores<CAPPED>(p, t, sm, row, key, s);
      tile_weight_gradients(p, t, sm, key, dw);
#pragma unroll
      for (int i = 0; i < 4; ++i) {
#pragma unroll
        for (int j = 0; j < 4; ++j) {
          const Weight w = compute_weight(p, row[i], s[i][j], lse[i], 1);
          f[i] += fabsf(w.part);
          if (!w.alive) continue;
          fg[i] += w.part * dw[i][j];
          g[i] += dw[i][j];
        }
      }
    }
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      f[i] = row_sum(f[i]);
      fg[i] = row_sum(fg[i]);
      g[i] = row_sum(g[i]);
      const bool empty = row[i].keys.begin >= row[i].keys.end;
      const float outside = empty ? 0 : outside_share(p, t.head, lse[i]);
      const float sum = f[i] + outside;
      center[i] = sum > 0 && p.normalizer != Normalizer::sigmoid ? fg[i] / sum : 0;
      // If a row sees only one key, the probability of this key is 1. Set center = g so that ds is exactly zero,
      // because f g / f may differ from g by rounding.
      if (row[i].keys.end - row[i].keys.begin == 1 && single_key_is_one(p.normalizer, sum == f[i])) {
        center[i] = g[i];
      }
      inverse[i] = has_sum(p.normalizer) && sum > 0 ? 1 / sum : 1;
      tau[i] = g[i] * row[i].offset_scale;
      sink[i] = -outside * inverse[i] * center[i];
      if (tx == 0 && t.first + 4 * ty + i < t.q_length) {
        const int64_t index = row_index(p, t, t.head, t.first + 4 * ty + i);
        p.row_center[index] = center[i];
        p.row_norm[index] = inverse[i];
      }
    }
    const float tau_sum = block_sum(sm, tau), sink_sum = block_sum(sm, sink);
    if (threadIdx.x == 0) {
      partial[0] = tau_sum;
      partial[part] = sink_sum;
    }
  }
  if (!p.d_q.data && !p.d_alibi_slopes) {
    if (threadIdx.x == 0) partial[2 * part] = 0;
    return;
  }
  float acc[N][4][4] = {}, slope[4] = {};
  for (int key = keys.begin; key < keys.end; key += kTile) {
    float s[4][4], dw[4][4];
    tile_scores<CAPPED>(p, t, sm, row, key, s);
    tile_weight_gradients(p, t, sm, key, dw);
#pragma unroll
    for (int i = 0; i < 4; ++i) {
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        const Weight w = compute_weight(p, row[i], s[i][j], lse[i], inverse[i]);
        s[i][j] = w.factor * ((w.alive ? dw[i][j] : 0) - center[i]);
        slope[i] -= s[i][j] * static_cast<float>(abs(row[i].position - (key + tx + 16 * j)));
      }
    }
    if constexpr (CAPPED) uncap_gradients(p, t, sm, key, s);
    put_strip(sm, s, false);
    weighted_sum(acc, sm, p.head_dim, [&](int c, int d) {
      return key + c < t.k_length ? load(p.k.data, k_offset(p.k, t, kv_head, key + c) + d * p.k.dim, p.dtype) : 0.0f;
    });
  }
  if (p.d_q.data) {
    store_rows(p.d_q, p, p.head_dim, p.scale, acc, t.q_length - t.first, q_offset(p.d_q, t, t.head, t.first),
               p.d_q.token);
  }
#pragma unroll
  for (int i = 0; i < 4; ++i) slope[i] = row_sum(slope[i]);
  const float slope_sum = block_sum(sm, slope);
  if (threadIdx.x == 0) partial[2 * part] = slope_sum;
}

template <int N, bool CAPPED>
__global__ void __launch_bounds__(kThreads) backward_keys(Params p, int tiles) {
  __shared__ ProductShared sm;
  Tile t;
  const int kv_head = blockIdx.y, group = p.heads / p.kv_heads;
  t.batch = blockIdx.x / tiles;
  if (!locate(p, blockIdx.x % tiles, kTile, true, t)) return;
  const int key0 = t.first, count = min(kTile, t.k_length - key0), ty = threadIdx.x / 16;
  const Keys rows = rows_seeing(p, t, key0, key0 + count - 1);
  float d_k[N][4][4] = {}, d_v[N][4][4] = {};
  for (int h = 0; h < group; ++h) {
    t.head = kv_head * group + h;
    for (int first = rows.begin / kTile * kTile; first < rows.end; first += kTile) {
      t.first = first;
      Row row[4];
      make_rows(p, t, row);
      float s[4][4], ds[4][4];
      tile_scores<CAPPED>(p, t, sm, row, key0, s);
      tile_weight_gradients(p, t, sm, key0, ds);
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        float lse = 0, center = 0, inverse = 1;
        if (first + 4 * ty + i < t.q_length) {
          const int64_t index = row_index(p, t, t.head, first + 4 * ty + i);
          if (p.normalizer != Normalizer::sigmoid) lse = p.lse[index];
          center = p.row_center[index];
          inverse = p.row_norm[index];
        }
#pragma unroll
        for (int j = 0; j < 4; ++j) {
          const Weight w = compute_weight(p, row[i], s[i][j], lse, inverse);
          ds[i][j] = w.factor * ((w.alive ? ds[i][j] : 0) - center);
          s[i][j] = w.weight;
        }
      }
      if (p.d_v.data) {
        put_strip(sm, s, true);
        weighted_sum(d_v, sm, p.value_dim, [&](int r, int d) {
          return first + r < t.q_length
                     ? load(p.d_out.data, q_offset(p.d_out, t, t.head, first + r) + d * p.d_out.dim, p.dtype)
                     : 0.0f;
        });
      }
      if (p.d_k.data) {
        if constexpr (CAPPED) uncap_gradients(p, t, sm, key0, ds);
        put_strip(sm, ds, true);
        weighted_sum(d_k, sm, p.head_dim, [&](int r, int d) {
          return first + r < t.q_length ? load(p.q.data, q_offset(p.q, t, t.head, first + r) + d * p.q.dim, p.dtype)
                                        : 0.0f;
        });
      }
    }
  }
  if (p.d_k.data) {
    store_rows(p.d_k, p, p.head_dim, p.scale, d_k, count, k_offset(p.d_k, t, kv_head, key0), p.d_k.token);
  }
  if (p.d_v.data) {
    store_rows(p.d_v, p, p.value_dim, 1, d_v, count, k_offset(p.d_v, t, kv_head, key0), p.d_v.token);
  }
}

// Computes the gradient of the distance bias as sums of ds (the gradients of the scores) over all pairs at the same
// distance. A block processes the distances from d0 to d0 + 63 of one head, for every bias_splits-th tile of rows. For
// one tile of rows, the pairs at these distances are in two tiles of keys (before the rows) with a causal mask, and in
// four tiles of keys (before and after the rows) without one.
template <bool CAPPED>
__global__ void __launch_bounds__(kThreads) bias_diagonals(Params p, int tiles) {
  __shared__ ProductShared sm;
  Tile t;
  t.head = blockIdx.y;
  const int d0 = blockIdx.x * kBiasTile, split = blockIdx.z, ty = threadIdx.x / 16;
  const int distance = threadIdx.x % kBiasTile, quarter = threadIdx.x / kBiasTile;
  float sum = 0;
  for (int64_t n = split; n < static_cast<int64_t>(tiles) * p.batch; n += p.bias_splits) {
    t.batch = static_cast<int>(n / tiles);
    if (!locate(p, static_cast<int>(n % tiles), kTile, false, t)) continue;
    Row row[4];
    make_rows(p, t, row);
    const Keys keys = tile_keys(p, t);
    const int here = t.first + t.shift();  // position of the first row in the tile
    for (int side = 0; side < (p.causal ? 2 : 4); ++side) {
      // Row r has the position here + r. In the tile of keys that begins at key0, the key at distance d0 + x from row r
      // is in column c, where key0 + c = here + r - (d0 + x) for keys before the row (sides 0 and 1) and key0 + c =
      // here + r + (d0 + x) for keys after the row (sides 2 and 3).
      const bool behind = side < 2;
      const int key0 = behind ? here - d0 - 63 + 64 * side : here + d0 + 64 * (side - 2);
      if (key0 + kTile <= keys.begin || key0 >= keys.end) continue;
      float s[4][4], ds[4][4];
      tile_scores<CAPPED>(p, t, sm, row, key0, s);
      tile_weight_gradients(p, t, sm, key0, ds);
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        float lse = 0, center = 0, inverse = 1;
        if (t.first + 4 * ty + i < t.q_length) {
          const int64_t index = row_index(p, t, t.head, t.first + 4 * ty + i);
          if (p.normalizer != Normalizer::sigmoid) lse = p.lse[index];
          center = p.row_center[index];
          inverse = p.row_norm[index];
        }
#pragma unroll
        for (int j = 0; j < 4; ++j) {
          const Weight w = compute_weight(p, row[i], s[i][j], lse, inverse);
          ds[i][j] = w.factor * ((w.alive ? ds[i][j] : 0) - center);
        }
      }
      put_strip(sm, ds, false);
      __syncthreads();
      if (!behind && d0 + distance == 0) continue;  // sides 0 and 1 have already counted distance zero
      for (int r = 16 * quarter; r < 16 * quarter + 16; ++r) {
        const int c = behind ? r - distance + 63 - 64 * side : r + distance - 64 * (side - 2);
        if (c >= 0 && c < kTile) sum += sm.strip[r * kStripStride + c];
      }
    }
  }
  __syncthreads();
  sm.strip[threadIdx.x] = sum;
  __syncthreads();
  if (threadIdx.x < kBiasTile && d0 + distance < p.bias_window) {
    p.bias_slabs[(static_cast<int64_t>(split) * p.heads + t.head) * p.bias_window + d0 + distance] =
        (sm.strip[distance] + sm.strip[64 + distance]) + (sm.strip[128 + distance] + sm.strip[192 + distance]);
  }
}

// Adds all slabs of Params::bias_slabs to the gradient of the distance bias. A block computes 32 entries of the
// gradient, and each of its eight warps sums every eighth slab.
__global__ void sum_slabs(Params p) {
  __shared__ float sums[8][32];
  const int64_t size = static_cast<int64_t>(p.heads) * p.bias_window;
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const int64_t n = int64_t{32} * blockIdx.x + lane;
  float sum = 0;
#pragma unroll 8
  for (int split = warp; n < size && split < p.bias_splits; split += 8) sum += p.bias_slabs[split * size + n];
  sums[warp][lane] = sum;
  __syncthreads();
  if (warp > 0 || n >= size) return;
  for (int w = 1; w < 8; ++w) sum += sums[w][lane];
  p.d_distance_bias[n] = sum;
}

// Adds the partial sums of d_tau, d_sink or d_alibi_slopes (selected by blockIdx.y) of one head.
__global__ void sum_partial(Params p, int64_t tiles) {
  __shared__ float sums[256];
  float* const to = blockIdx.y == 0 ? p.d_tau : blockIdx.y == 1 ? p.d_sink : p.d_alibi_slopes;
  if (!to) return;
  const float* from = p.partial + (static_cast<int64_t>(blockIdx.y) * p.heads + blockIdx.x) * tiles;
  float sum = 0;
  for (int64_t n = threadIdx.x; n < tiles; n += 256) sum += from[n];
  sums[threadIdx.x] = sum;
  for (int half = 128; half > 0; half /= 2) {
    __syncthreads();
    if (threadIdx.x < half) sums[threadIdx.x] += sums[threadIdx.x + half];
  }
  if (threadIdx.x == 0) to[blockIdx.x] = sums[0];
}

}  // namespace plain

void bias_gradient(const Params& p, cudaStream_t stream) {
  if (!p.d_distance_bias || p.bias_window == 0) return;
  const int tiles = tile_count(p, p.q_length, kPlainRows);
  const dim3 grid((p.bias_window + kBiasTile - 1) / kBiasTile, p.heads, p.bias_splits);
  with_softcap(p, [&](auto capped) {
    launch("the gradient of the distance bias", plain::bias_diagonals<capped>, grid, plain::kThreads, 0, stream, p,
           tiles);
  });
  sum_bias_slabs(p, stream);
}

void sum_bias_slabs(const Params& p, cudaStream_t stream) {
  const int64_t size = static_cast<int64_t>(p.heads) * p.bias_window;
  launch("the reduction of the partial gradients of the distance bias", plain::sum_slabs,
         static_cast<unsigned>((size + 31) / 32), 256, 0, stream, p);
}

void reduce_partial(const Params& p, int tiles, cudaStream_t stream) {
  if (!p.d_tau && !p.d_sink && !p.d_alibi_slopes) return;
  launch("the reduction of the per-head gradients", plain::sum_partial, dim3(p.heads, 3), 256, 0, stream, p, tiles);
}

void plain_backward(const Params& p, cudaStream_t stream) {
  const int row_tiles = tile_count(p, p.q_length, kPlainRows), key_tiles = tile_count(p, p.k_length, kPlainRows);
  const dim3 rows(row_tiles * p.batch, p.heads), keys(key_tiles * p.batch, p.kv_heads);
  const int widest = p.value_dim > p.head_dim ? p.value_dim : p.head_dim;
  with_softcap(p, [&](auto capped) {
    with_head_size_limit(p.head_dim, [&](auto size) {
      launch("the plain backward kernel for query rows", plain::backward_rows<size / plain::kTile, capped>, rows,
             plain::kThreads, 0, stream, p, row_tiles);
    });
    if (!p.d_k.data && !p.d_v.data) return;
    with_head_size_limit(widest, [&](auto size) {
      launch("the plain backward kernel for keys", plain::backward_keys<size / plain::kTile, capped>, keys,
             plain::kThreads, 0, stream, p, key_tiles);
    });
  });
  bias_gradient(p, stream);
  reduce_partial(p, static_cast<int>(rows.x), stream);
}

}  // namespace lazy::kernels::cuda
