// Forward for every normalizer. The kernel sweeps over the keys until the normalization of each row is known, and then
// sweeps again to compute the weights and the weighted sum. Every sweep recomputes the scores, so that the memory is
// linear in the sequence lengths.
#include <algorithm>

#include "attention/cuda/launchers.h"
#include "attention/cuda/plain_products.cuh"
#include "attention/cuda/score_sums.cuh"

namespace lazy::kernels::cuda {

namespace plain {

// Statistics of the four rows of a thread; Statistic in weights.cuh defines the fields.
struct PlainRowStatistics {
  float largest[4], anchor[4], inverse[4], lse[4], low[4];
};

// Computes the statistics for normalizers with a sum of exponentials, in one sweep over the keys.
template <bool CAPPED>
__device__ void sum_statistics(const Params& p, const Tile& t, ProductShared& sm, const Row (&row)[4], Keys keys,
                               PlainRowStatistics& out) {
  float largest[4], sum[4];
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const RunningSum start = start_sum(p, t.head);
    largest[i] = start.largest;
    sum[i] = start.sum;
  }
  for (int key = keys.begin; key < keys.end; key += kTile) {
    float s[4][4];
    tile_scores<CAPPED>(p, t, sm, row, key, s);
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const float m = fmaxf(largest[i], row_max(fmaxf(fmaxf(s[i][0], s[i][1]), fmaxf(s[i][2], s[i][3]))));
      // A row that has not seen a key yet (m = -inf) must also execute the reductions, because several rows share a
      // warp and row_sum needs all lanes of the warp.
      const float base = m == -INFINITY ? 0 : m;
      float part = 0;
#pragma unroll
      for (int j = 0; j < 4; ++j) part += sum_term(p, s[i][j], base);
      sum[i] = sum[i] * expf(largest[i] - base) + row_sum(part);
      largest[i] = m;
    }
  }
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const Statistic statistic = finish_sum(p, row[i], largest[i], sum[i]);
    out.largest[i] = statistic.largest;
    out.anchor[i] = statistic.anchor;
    out.inverse[i] = statistic.inverse;
    out.lse[i] = statistic.lse;
    out.low[i] = statistic.low;
  }
}

// Shared-memory cache of the scores of the first `tiles` key tiles, for normalizers that need many sweeps. Each thread
// reads only values that it wrote itself, so no barrier is needed.
constexpr int kTileBytes = kTile * kTile * sizeof(float);

struct ScoreCache {
  float* room;
  int tiles;

  __device__ bool has(int n) const { return n < tiles; }
  __device__ float& at(int n, int i, int j) const { return room[((n * 4 + i) * 4 + j) * kThreads + threadIdx.x]; }
  __device__ void keep(int n, const float (&s)[4][4]) const {
    if (!has(n)) return;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
#pragma unroll
      for (int j = 0; j < 4; ++j) at(n, i, j) = s[i][j];
    }
  }
};

// Returns the scores of the n-th key tile, whose first key is `key`. They are read from the cache or computed again.
// All threads of the block must call this function together.
template <bool CAPPED>
__device__ void cached_scores(const Params& p, const Tile& t, ProductShared& sm, const Row (&row)[4],
                              const ScoreCache& kept, int n, int key, float (&s)[4][4]) {
  if (!kept.has(n)) return tile_scores<CAPPED>(p, t, sm, row, key, s);
#pragma unroll
  for (int i = 0; i < 4; ++i) {
#pragma unroll
    for (int j = 0; j < 4; ++j) s[i][j] = kept.at(n, i, j);
  }
}

// Computes the threshold t that solves sum_j max(x_j - t, 0)^a = 1, with a = 1 (sparsemax) or 2 (entmax15) and x
// relative to the row's maximum, by Newton's method. The left side is convex and decreasing in t, so the iterates from
// t = -1 increase to the root and do not pass it, except by rounding.
template <bool CAPPED>
__device__ void threshold_statistics(const Params& p, const Tile& t, ProductShared& sm, const Row (&row)[4], Keys keys,
                                     const ScoreCache& kept, PlainRowStatistics& out) {
  const float unit = p.normalizer == Normalizer::entmax15 ? 0.5f : 1.0f;
  float largest[4], threshold[4], low[4];
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    largest[i] = -INFINITY;
    threshold[i] = -1;
    low[i] = 0;
  }
  for (int key = keys.begin; key < keys.end; key += kTile) {
    float s[4][4];
    tile_scores<CAPPED>(p, t, sm, row, key, s);
    kept.keep((key - keys.begin) / kTile, s);
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      largest[i] = fmaxf(largest[i], row_max(fmaxf(fmaxf(s[i][0], s[i][1]), fmaxf(s[i][2], s[i][3]))));
    }
  }
  constexpr int kMaxSteps = 64;
  for (int step = 0; step < kMaxSteps; ++step) {
    float count[4] = {}, first[4] = {}, second[4] = {};
    for (int key = keys.begin; key < keys.end; key += kTile) {
      float s[4][4];
      cached_scores<CAPPED>(p, t, sm, row, kept, (key - keys.begin) / kTile, key, s);
#pragma unroll
      for (int i = 0; i < 4; ++i) {
#pragma unroll
        for (int j = 0; j < 4; ++j) {
          if (s[i][j] == -INFINITY) continue;
          const float z = unit * (s[i][j] - largest[i]) - threshold[i];
          if (z > 0) {
            count[i] += 1;
            first[i] += z;
            second[i] += z * z;
          }
        }
      }
    }
    int moved = 0;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      count[i] = row_sum(count[i]);
      first[i] = row_sum(first[i]);
      second[i] = row_sum(second[i]);
      if (count[i] == 0) continue;
      // The increase of the threshold is computed first and then added. It depends on sums that are near one for scores
      // of any size, so it is precise.
      const float step =
          p.normalizer == Normalizer::entmax15 ? (second[i] - 1) / (2 * first[i]) : (first[i] - 1) / count[i];
      const float next = threshold[i] + step;
      low[i] = next > threshold[i] ? 0 : step;
      moved |= next > threshold[i];
      threshold[i] = fmaxf(next, threshold[i]);
    }
    if (!__syncthreads_or(moved)) break;
  }
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const bool empty = row[i].keys.begin >= row[i].keys.end;
    out.largest[i] = empty ? 0 : largest[i];
    out.anchor[i] = threshold[i];
    out.low[i] = low[i];
    out.inverse[i] = 1;
    out.lse[i] = empty ? -INFINITY : unit * largest[i] + (threshold[i] + low[i]);
  }
}

// Forward kernel (see the top of this file). SCORES: the kernel also writes Params::score_stats. cached_tiles: number
// of key tiles in the score cache.
template <int N, bool SCORES, bool CAPPED>
__global__ void __launch_bounds__(kThreads) forward(Params p, int tiles, int cached_tiles) {
  __shared__ ProductShared sm;
  extern __shared__ float room[];
  const ScoreCache kept{room, cached_tiles};
  Tile t;
  t.head = blockIdx.y;
  t.batch = blockIdx.x / tiles;
  // Start with the last tiles: with a causal mask they have the most keys.
  if (!locate(p, tiles - 1 - blockIdx.x % tiles, kTile, false, t)) return;
  Row row[4];
  make_rows(p, t, row);
  const Keys keys = tile_keys(p, t);
  PlainRowStatistics statistics{};
  if (has_sum(p.normalizer)) sum_statistics<CAPPED>(p, t, sm, row, keys, statistics);
  if (has_threshold(p.normalizer)) threshold_statistics<CAPPED>(p, t, sm, row, keys, kept, statistics);
  if (!in_family<NormalizerFamily::exponential>(p.normalizer) && !in_family<NormalizerFamily::sigmoid>(p.normalizer)) {
#pragma unroll
    for (int i = 0; i < 4; ++i) row[i].offset = statistics.low[i];
  }
  const int tx = threadIdx.x % 16, ty = threadIdx.x / 16, kv_head = t.head / (p.heads / p.kv_heads);
  float acc[N][4][4] = {}, total[4] = {}, alive[4] = {}, first[4] = {};
  ScoreSums<NaturalExponential> scores[SCORES ? 4 : 1];
  for (int key = keys.begin; key < keys.end; key += kTile) {
    float s[4][4];
    cached_scores<CAPPED>(p, t, sm, row, kept, (key - keys.begin) / kTile, key, s);
    if constexpr (SCORES) {
#pragma unroll
      for (int i = 0; i < 4; ++i) scores[i].template add<4>(1, [&](int j) { return s[i][j]; });
    }
#pragma unroll
    for (int i = 0; i < 4; ++i) {
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        const Weight w =
            compute_weight(p, row[i], s[i][j] - statistics.largest[i], statistics.anchor[i], statistics.inverse[i]);
        s[i][j] = w.weight;
        total[i] += w.weight;
        alive[i] += w.alive;
        if (key + tx + 16 * j == 0) first[i] = w.weight;
      }
    }
    put_strip(sm, s, false);
    weighted_sum(acc, sm, p.value_dim, [&](int c, int d) {
      return key + c < t.k_length ? load(p.v.data, k_offset(p.v, t, kv_head, key + c) + d * p.v.dim, p.dtype) : 0.0f;
    });
  }
  store_rows(p.out, p, p.value_dim, 1, acc, t.q_length - t.first, q_offset(p.out, t, t.head, t.first), p.out.token);
  const int64_t part = static_cast<int64_t>(p.batch) * p.heads * p.q_length;
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    total[i] = row_sum(total[i]);
    alive[i] = row_sum(alive[i]);
    if constexpr (SCORES) {
      for (int d = 1; d < 16; d *= 2) scores[i].merge_lane(d);
    }
    if (t.first + 4 * ty + i >= t.q_length || tx != 0) continue;
    const int64_t index = row_index(p, t, t.head, t.first + 4 * ty + i);
    if (p.lse) p.lse[index] = p.normalizer == Normalizer::sigmoid ? 0 : statistics.lse[i];
    if (p.stats) {
      p.stats[index] = first[i];  // the thread with tx = 0 processed key 0
      p.stats[part + index] = 1 - total[i];
      p.stats[2 * part + index] = alive[i];
    }
    if constexpr (SCORES) {
      const ScoreStatistics of_scores = scores[i].finish(row[i].keys.end - row[i].keys.begin);
      p.score_stats[index] = of_scores.largest;
      p.score_stats[part + index] = of_scores.entropy;
    }
  }
}

// Number of key tiles in the score cache: all tiles of a sequence, up to the limit set by the shared memory of a block.
inline int cached_tiles(const Params& p) {
  constexpr int kMax = 8;  // maximum number of tiles in the cache: 512 keys, 128 KiB
  if (!has_threshold(p.normalizer)) return 0;
  int device = 0, most = 0;
  check(cudaGetDevice(&device), "plain forward");
  check(cudaDeviceGetAttribute(&most, cudaDevAttrMaxSharedMemoryPerBlockOptin, device), "plain forward");
  const int room = (most - static_cast<int>(sizeof(ProductShared)) - 1024) / kTileBytes;
  return std::clamp(static_cast<int>((p.k_length + kTile - 1) / kTile), 0, std::min(room, kMax));
}

template <int N>
void launch_forward(const Params& p, dim3 grid, int tiles, cudaStream_t stream) {
  const int kept = cached_tiles(p);
  with_softcap(p, [&](auto capped) {
    launch("the plain forward", p.score_stats ? forward<N, true, capped> : forward<N, false, capped>, grid, kThreads,
           kept * kTileBytes, stream, p, tiles, kept);
  });
}

}  // namespace plain

void plain_forward(const Params& p, cudaStream_t stream) {
  const int tiles = tile_count(p, p.q_length, kPlainRows);
  const dim3 grid(tiles * p.batch, p.heads);
  with_head_size_limit(p.value_dim,
                       [&](auto size) { plain::launch_forward<size / plain::kTile>(p, grid, tiles, stream); });
}

}  // namespace lazy::kernels::cuda
