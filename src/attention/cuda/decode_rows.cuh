// Decode's rows: where they stand, what they see, where a key lies, and the way from a score to a weight.
#pragma once
#include "attention/cuda/decode_memory.cuh"
#include "attention/cuda/decode_params.h"
#include "attention/cuda/weights.cuh"

namespace lazy::kernels::cuda::decoding {

// Up to kRows rows of one kv head of one sequence. A kv head's rows count as (head of its group, query).
struct RowTile {
  int batch, kv_head, first, rows;
  int64_t row;                              // of the first one, among all rows
  int64_t kept;                             // the same among the rows of scores
  int index;                                // among all tiles
  Sequence sequence;
  __device__ int head(const Params& p, int r) const { return kv_head * p.group + (first + r) / p.q_length; }
  __device__ int query(const Params& p, int r) const { return (first + r) % p.q_length; }
};

__device__ inline int position(const Params& p, int length, int query) { return length - p.q_length + query; }

// lazy/visibility.h in 32 bits.
__device__ inline Keys visible(const Params& p, int length, int query) {
  const int here = position(p, length, query);
  int begin = 0, end = length;
  if (p.causal) end = max(0, min(here + 1, length));
  if (p.window >= 0) {
    begin = max(0, min(here - p.window + 1, end));
    if (!p.causal) end = max(begin, min(here + p.window, end));
  }
  return {begin, end};
}

// Elements from a cache's start to a key, before the head's offset; or one of these.
constexpr int64_t kAbsent = INT64_MIN, kBadPage = INT64_MIN + 1;
__device__ inline bool present(int64_t offset) { return offset > kBadPage; }

__device__ inline int64_t plain_offset(const Tensor& cache, int batch, int key) {
  return batch * cache.batch + key * cache.token;
}
__device__ inline int64_t paged_offset(const Params& p, const Tensor& cache, int batch, int key) {
  const int n = p.page_size.divide(key);
  const int64_t page = __ldg(p.block_table + batch * p.table_width + n);
  return page < 0 || page >= p.pages ? kBadPage : page * cache.batch + (key - n * p.page_size.value) * cache.token;
}
__device__ inline int64_t key_offset(const Params& p, const Tensor& cache, int batch, int key) {
  return p.block_table ? paged_offset(p, cache, batch, key) : plain_offset(cache, batch, key);
}

__device__ inline bool threshold_like(Normalizer n) { return n == Normalizer::sparsemax || n == Normalizer::entmax15; }

// Rows of V that carry weight, and the weights of `rows` rows: weight[r * stride + n].
struct AliveList {
  int64_t* at;
  float* weight;
  int stride;                               // 8 more than a multiple of 32, against bank conflicts
};

struct Weighed {
  float weight;
  bool alive;
};

// A NaN is alive: it shows.
__device__ inline Weighed weigh_softmax(const RowState& r, float score) {
  const float weight = expf(score - r.largest) * r.inverse + r.offset;
  const bool alive = !(weight <= r.dead);
  return {alive ? weight : 0, alive};
}

__device__ inline Weighed weigh(Normalizer normalizer, const RowState& r, float score) {
  switch (normalizer) {
    case Normalizer::sparsemax: {
      const float z = score - r.largest - r.inverse;
      return {z <= 0 ? 0 : z, !(z <= 0)};
    }
    case Normalizer::entmax15: {
      const float z = (score - r.largest) / 2 - r.inverse;
      return {z <= 0 ? 0 : z * z, !(z <= 0)};
    }
    case Normalizer::sigmoid: return {1 / (1 + expf(-(score + r.offset))), true};
    default: return weigh_softmax(r, score);
  }
}

// What does not depend on the scores.
__device__ inline RowState make_state(const Params& p, const RowTile& t, int r) {
  const Keys keys = visible(p, max(t.sequence.length, 0), t.query(p, r));
  RowState state{0, 1, 0, -INFINITY, 1, keys.begin, keys.end, 0};
  int64_t count = keys.end - keys.begin;
  if (p.visible_counts) count = p.visible_counts[t.batch] - (p.q_length - 1 - t.query(p, r));
  if (p.normalizer == Normalizer::elastic) {
    const float tau = p.tau[t.head(p, r)];
    state.offset = p.per_visible ? tau / static_cast<float>(count) : tau;
    if (state.offset < 0) state.dead = 0;
  }
  if (p.normalizer == Normalizer::sigmoid) {
    state.offset = isnan(p.sigmoid_bias) ? -logf(static_cast<float>(count)) : p.sigmoid_bias;
  }
  if (p.dtype == DType::f16) {
    // Weights are at most `most`: lifted they stay below 2^15, and what fp16's two parts of them lose is below 2^-38.
    const float most = p.normalizer == Normalizer::elastic ? 1 + fmaxf(state.offset, 0) : 1;
    state.lift = isfinite(most) ? ldexpf(1, 14 - ilogbf(most)) : 1;
  }
  return state;
}

}  // namespace lazy::kernels::cuda::decoding
