// The tile of tokens that a thread block processes, and the keys that a row sees (32-bit device version of
// lazy/visibility.h).
#pragma once
#include "attention/cuda/params.h"

namespace lazy::kernels::cuda {

// A tile of query rows or keys in one document. Lengths are in tokens; `first` is the index of the tile's first row (or
// key) within the document.
struct Tile {
  int batch, head, first, document;
  int q_begin, q_length, k_begin, k_length;
  // The position of query `row` among the keys is row + shift().
  __device__ int shift() const { return k_length - q_length; }
};

struct Keys {
  int begin, end;
};

__device__ inline Keys visible(const Params& p, const Tile& t, int row) {
  const int here = row + t.shift();
  int begin = 0, end = t.k_length;
  if (p.causal) end = max(0, min(here + 1, t.k_length));
  if (p.window >= 0) {
    begin = max(0, min(here - p.window + 1, end));
    if (!p.causal) end = max(begin, min(here + p.window, end));
  }
  return {begin, end};
}

// Returns a range of rows [begin, end) that contains every row that sees at least one key of [first, last].
__device__ inline Keys rows_seeing(const Params& p, const Tile& t, int first, int last) {
  int begin = 0, end = t.q_length;
  if (p.causal) begin = max(0, first - t.shift());
  if (p.window >= 0) {
    end = min(end, last + p.window - t.shift());
    if (!p.causal) begin = max(begin, first - p.window + 1 - t.shift());
  }
  return {begin, max(begin, end)};
}

// Computes the tile with the given index when the q axis (or, if `keys` is true, the k axis) is divided into tiles of
// `size` tokens. Returns false if there are fewer tiles. For packed documents, a warp searches 32 documents at a time,
// so all lanes of the warp must call this function.
__device__ inline bool locate(const Params& p, int index, int size, bool keys, Tile& t) {
  if (!p.cu_q) {
    t.q_begin = t.k_begin = t.document = 0;
    t.q_length = p.q_length;
    t.k_length = p.k_length;
    t.first = index * size;
    return t.first < (keys ? p.k_length : p.q_length);
  }
  const int32_t* cu = keys ? p.cu_k : p.cu_q;
  const int lane = threadIdx.x & 31;
  for (int base = 0; base < p.sequences; base += 32) {
    const int s = base + lane;
    const int tiles = s < p.sequences ? (cu[s + 1] - cu[s] + size - 1) / size : 0;
    int sum = tiles;
    for (int d = 1; d < 32; d *= 2) {
      const int other = __shfl_up_sync(~0u, sum, d);
      if (lane >= d) sum += other;
    }
    const unsigned hit = __ballot_sync(~0u, sum > index);
    if (hit) {
      const int lane_of = __ffs(hit) - 1, found = base + lane_of;
      const int before = __shfl_sync(~0u, sum - tiles, lane_of);
      t.document = found;
      t.q_begin = p.cu_q[found];
      t.q_length = p.cu_q[found + 1] - t.q_begin;
      t.k_begin = p.cu_k[found];
      t.k_length = p.cu_k[found + 1] - t.k_begin;
      t.first = (index - before) * size;
      return true;
    }
    index -= __shfl_sync(~0u, sum, 31);
  }
  return false;
}

// Returns the number of tiles of `size` rows in all documents before `document`. All lanes of a warp must call it.
__device__ inline int tiles_before(const Params& p, int document, int size) {
  int sum = 0;
  for (int s = threadIdx.x & 31; s < document; s += 32) sum += (p.cu_q[s + 1] - p.cu_q[s] + size - 1) / size;
  for (int d = 1; d < 32; d *= 2) sum += __shfl_xor_sync(~0u, sum, d);
  return sum;
}

// Index of a row in lse and in other arrays of shape (batch, heads, q_length).
__device__ inline int64_t row_index(const Params& p, const Tile& t, int head, int row) {
  return (static_cast<int64_t>(t.batch) * p.heads + head) * p.q_length + t.q_begin + row;
}

__device__ inline int64_t q_offset(const Tensor& x, const Tile& t, int head, int row) {
  return t.batch * x.batch + (t.q_begin + row) * x.token + head * x.head;
}
__device__ inline int64_t k_offset(const Tensor& x, const Tile& t, int kv_head, int key) {
  return t.batch * x.batch + (t.k_begin + key) * x.token + kv_head * x.head;
}

}  // namespace lazy::kernels::cuda
