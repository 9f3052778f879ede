// Query rows of decode: positions, visible keys, addresses of keys in the cache, and the list of keys with nonzero
// weight.
#pragma once
#include "attention/cuda/decode_memory.cuh"
#include "attention/cuda/decode_params.h"
#include "attention/cuda/weights.cuh"

namespace lazy::kernels::cuda::decoding {

template <typename T>
__device__ T warp_sum(T x) {
  for (int step = 16; step > 0; step /= 2) x += __shfl_xor_sync(~0u, x, step);
  return x;
}
__device__ inline float warp_max(float x) {
  for (int step = 16; step > 0; step /= 2) x = fmaxf(x, __shfl_xor_sync(~0u, x, step));
  return x;
}

// A tile of up to kRows query rows of one kv head of one sequence. The rows of a kv head are ordered by (head in its
// group, query).
struct RowTile {
  int batch, kv_head, first, rows;
  int64_t row;   // index of the tile's first row in lse
  int64_t kept;  // offset of the tile's scores in Params::scores
  Sequence sequence;
  __device__ int head(const Params& p, int r) const { return kv_head * p.group + (first + r) / p.q_length; }
  __device__ int query(const Params& p, int r) const { return (first + r) % p.q_length; }
};

__device__ inline int position(const Params& p, int length, int query) { return length - p.q_length + query; }

// Returns the range of keys that a query sees. This is the 32-bit device version of the functions in lazy/visibility.h.
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

__device__ inline Sequence read_sequence(const Params& p, int b) {
  const int64_t length = p.lengths[b];
  const bool good = length >= 0 && length <= p.capacity && (!p.visible_counts || p.visible_counts[b] >= p.q_length);
  if (!good) return {-1, 0, 0};
  const int n = static_cast<int>(length);
  // Both ends of the visible range are nondecreasing in the row, so the first and the last row determine the union.
  const int first = visible(p, n, 0).begin / kPad * kPad;
  return {n, first, max(first, visible(p, n, p.q_length - 1).end)};
}

// Returns the tile with index `tile` of the sequence with index `sequence`. Both indices are relative to the round.
__device__ inline RowTile make_tile(const Params& p, int sequence, int tile) {
  const int n = p.round_tile + tile;
  RowTile t;
  t.batch = p.round_batch + sequence;
  t.kv_head = n / p.tiles;
  t.first = n % p.tiles * kRows;
  t.rows = min(p.rows - t.first, kRows);
  t.row = (static_cast<int64_t>(t.batch) * p.kv_heads + t.kv_head) * p.rows + t.first;
  t.kept = (static_cast<int64_t>(sequence) * p.round_tiles + tile) * p.score_rows * p.columns;
  t.sequence = read_sequence(p, t.batch);
  return t;
}

__host__ __device__ constexpr int span_keys(const Params& p) { return kWarps * p.scan; }
__device__ inline int part_count(const Params& p, const Sequence& s) { return (s.end - s.first + p.part - 1) / p.part; }
__device__ inline int span_count(const Params& p, const Sequence& s) {
  return max((s.end - s.first + span_keys(p) - 1) / span_keys(p), 1);
}

__device__ inline float* score_at(const Params& p, const RowTile& t, int r, int key) {
  return p.scores + t.kept + int64_t{r} * p.score_row + int64_t{key - t.sequence.first} * p.score_key;
}

// Stores dimension d of an output row. If the sequence's length is invalid, stores NaN instead of x.
__device__ inline void store_out(const Params& p, int batch, int head, int query, int d, const Sequence& s, float x) {
  const int64_t at = batch * p.out.batch + query * p.out.token + head * p.out.head + d * p.out.dim;
  store(p.out.data, at, p.dtype, s.length < 0 ? NAN : x);
}

// Offset of a key from the start of the cache in elements, without the offset of the head. kAbsent: the key does not
// exist. kBadPage: the page number of the key is out of range.
constexpr int64_t kAbsent = INT64_MIN, kBadPage = INT64_MIN + 1;
__device__ inline bool present(int64_t offset) { return offset >= 0; }

__device__ inline int64_t plain_offset(const Tensor& cache, int batch, int key) {
  return batch * cache.batch + key * cache.token;
}
__device__ inline int64_t page_of(const Params& p, int batch, int key) {
  return __ldg(p.block_table + batch * p.table_width + p.page_size.divide(key));
}
__device__ inline int64_t offset_on(int64_t page, const Params& p, const Tensor& cache, int key) {
  const int n = key - p.page_size.divide(key) * p.page_size.value;
  return page < 0 || page >= p.pages ? kBadPage : page * cache.batch + n * cache.token;
}
__device__ inline int64_t paged_offset(const Params& p, const Tensor& cache, int batch, int key) {
  return offset_on(page_of(p, batch, key), p, cache, key);
}
__device__ inline int64_t key_offset(const Params& p, const Tensor& cache, int batch, int key) {
  return p.block_table ? paged_offset(p, cache, batch, key) : plain_offset(cache, batch, key);
}

// Per-row values that convert dot products to scores.
struct RowView {
  const float* bias;
  float slope;
  int here, begin, end;  // `here`: position of the row; [begin, end): visible keys
};
__device__ inline RowView make_view(const Params& p, const RowTile& t, int r) {
  const int head = t.head(p, r), query = t.query(p, r);
  const Keys keys = visible(p, t.sequence.length, query);
  const float slope = p.alibi_slopes ? p.alibi_slopes[head] : 0;
  return {p.distance_bias + static_cast<int64_t>(head) * p.bias_window, slope, position(p, t.sequence.length, query),
          keys.begin, keys.end};
}
__device__ inline float score_bias(const Params& p, const RowView& row, int key) {
  const int distance = abs(row.here - key);
  return distance < p.bias_window ? __ldg(row.bias + distance) : 0;
}
// Computes the score from the dot product and the distance bias. If the problem has a softcap, `dot` must be the capped
// score, and p.scale is 1.
__device__ inline float finish_score(const Params& p, const RowView& row, int key, float dot, float bias) {
  float s = p.scale * dot + bias;
  if (p.alibi_slopes) s -= row.slope * static_cast<float>(abs(row.here - key));
  return s;
}

// Returns a range of keys that every row sees and whose scores have neither a distance bias nor an ALiBi bias. The
// range may be smaller than the largest such range.
__device__ inline Keys simple_keys(const Params& p, const RowTile& t) {
  const int first = 0, last = p.q_length - 1, length = t.sequence.length;  // first and last query
  const int begin = visible(p, length, last).begin;
  if (p.alibi_slopes) return {begin, begin};
  return {begin, min(visible(p, length, first).end, position(p, length, first) - p.bias_window + 1)};
}

// Ring buffer that lists the keys with nonzero weight. An entry consists of the offset of the key's row of V and the
// key's weight for every row of the tile. Entry n has its offset at at[place(n)] and its weight for row r at
// weight[r * stride + place(n)]. New entries overwrite entries that were consumed.
struct AliveList {
  int64_t* at;
  float* weight;
  int rows;
  int mask;    // capacity - 1; the capacity is a power of two
  int stride;  // distance in floats between the weights of two rows: a multiple of 32, plus 8 to avoid bank conflicts
  __device__ int place(int n) const { return n & mask; }
};

// Returns the capacity of an AliveList for `rows` rows in entries. It must be large enough for the entries whose rows
// of V are being copied, one incomplete unit, and the entries that are added in one step.
constexpr int list_places(int rows) { return rows <= 2 ? 256 : 128; }
constexpr int list_bytes(int rows) { return list_places(rows) * 8 + rows * (list_places(rows) + 8) * 4; }

// Creates the list in the warp's shared memory.
__device__ inline AliveList make_list(char* memory, int rows) {
  auto* at = reinterpret_cast<int64_t*>(memory);
  const int places = list_places(rows);
  return {at, reinterpret_cast<float*>(at + places), rows, places - 1, places + 8};
}

}  // namespace lazy::kernels::cuda::decoding
