// lazy::decode: attention of a few query rows per sequence over a long KV cache, contiguous or paged. Inference only.
#pragma once
#include <atomic>
#include <cstdint>
#include <tuple>

#include "ops/attention.h"

namespace lazy::ops {

// Callers use lazy::decode, which reads the cache in place, for up to this many query rows per sequence. For more rows,
// lazy::attention is faster, because it packs the keys first. python/lazy_attention/decoding.py defines the same
// number.
constexpr int64_t kMaxDecodeRows = 8;

// q               (batch, rows, heads, head_dim): the newest tokens of each sequence, whose keys are in the cache
// k_cache         (batch, capacity, kv_heads, head_dim), or with block_table (pages, page_size, kv_heads, head_dim)
// v_cache         like k_cache, with value_dim as the last dimension
// cache_lengths   (batch) int32 or int64: number of keys in the cache of each sequence, at most its capacity
// block_table     (batch, maximum number of pages per sequence) int32 or int64: key j of sequence b is token
//                 j % page_size of page block_table[b][j / page_size]. Entries after the length are not read.
// visible_count   (batch) int32 or int64, at least `rows`: the number i of keys in the offset tau / i and in the
//                 sigmoid bias -ln(i) of the newest row. Needed if keys were evicted from the cache (StreamingLLM).
//                 Default: the number of keys in the cache that the row sees.
// options         as for attention; cu_seqlens must be undefined
// invariant       if true, the result of a sequence on a GPU is bitwise independent of the other sequences and of
//                 the capacity. This is slower, and another kernel must precede the call in the stream, because
//                 the first kernel uses programmatic dependent launch. On a CPU, results are always independent.
//
// Row i of a sequence with n keys is at position n - rows + i; distances are differences of cache indices. Cache
// entries after the length are never read. Returns out (batch, rows, heads, value_dim), and lse and stats as attention
// does. On the CPU an invalid length, page or count is an error. On a GPU these numbers are not checked before the
// kernel runs, so that the call does not synchronize: a sequence with an invalid number (for a page: the rows that see
// a key on this page) gets NaN, and nothing outside of the caches is read.
std::tuple<at::Tensor, at::Tensor, at::Tensor> decode(const at::Tensor& q, const at::Tensor& k_cache,
                                                      const at::Tensor& v_cache, const at::Tensor& cache_lengths,
                                                      const at::Tensor& distance_bias, const at::Tensor& tau,
                                                      const AttentionOptions& options,
                                                      const at::Tensor& block_table = {},
                                                      const at::Tensor& visible_count = {}, bool invariant = false);

// While an object of this class exists, it counts the rows of V that decode reads on the CPU, on all threads. A row is
// one key of one key-value head; it is read if at least one query of the head's group gives the key a nonzero weight.
// Only one object may exist at a time.
class ValueRowCount {
 public:
  ValueRowCount();
  ~ValueRowCount();
  ValueRowCount(const ValueRowCount&) = delete;
  ValueRowCount& operator=(const ValueRowCount&) = delete;
  static ValueRowCount* current();  // null if no count is active
  void add(int64_t rows) { rows_ += rows; }
  int64_t rows() const { return rows_; }

 private:
  std::atomic<int64_t> rows_ = 0;
};

}  // namespace lazy::ops
