// lazy::decode: one to a few query rows a sequence against a long key/value cache, contiguous or paged. Inference only.
#pragma once
#include <atomic>
#include <cstdint>
#include <tuple>

#include "ops/attention.h"

namespace lazy::ops {

// Up to this many query rows per sequence use lazy::decode, which reads the cache in place; for more rows
// lazy::attention, which packs the keys first, is faster. python/lazy_attention/decoding.py has the same number.
constexpr int64_t kFewRows = 8;

// q               (batch, rows, heads, head_dim): each sequence's newest tokens, whose keys the cache already holds
// k_cache         (batch, capacity, kv_heads, head_dim), or with block_table (pages, page_size, kv_heads, head_dim)
// v_cache         the same with value_dim
// cache_lengths   (batch) int32 or int64: keys in each sequence's cache, at most its capacity
// block_table     (batch, pages of a sequence at most) int32 or int64: key j of sequence b is token j % page_size of
//                 page block_table[b][j / page_size]. Entries beyond a sequence's length are not read.
// visible_count   (batch) int32 or int64, at least `rows`: the count that the offset tau / i and sigmoid's -ln(i) use
// for
//                 the newest row, where a cache has evicted keys (StreamingLLM); default: the keys that the row sees
// options         as for attention; cu_seqlens must be undefined
// invariant       on a GPU: a sequence's bits do not depend on the batch and the capacity, at some cost in speed; for a
//                 step of a model, in which another kernel comes before. On a CPU they never do
// Row i of a sequence with n keys stands at position n - rows + i; distances are between places in the cache. What a
// cache holds beyond its length is never read. Returns out (batch, rows, heads, value_dim), lse and stats as attention
// does. On the CPU a length, page or count out of range is an error. A GPU's numbers are not checked before the
// kernel runs, and nothing waits for it: there such a sequence (or, for a page, the rows that see a key on it) gets
// NaN, and nothing outside the caches is read.
std::tuple<at::Tensor, at::Tensor, at::Tensor> decode(const at::Tensor& q, const at::Tensor& k_cache,
                                                      const at::Tensor& v_cache, const at::Tensor& cache_lengths,
                                                      const at::Tensor& distance_bias, const at::Tensor& tau,
                                                      const AttentionOptions& options,
                                                      const at::Tensor& block_table = {},
                                                      const at::Tensor& visible_count = {}, bool invariant = false);

// Counts the rows of V that decode reads on the CPU while it lives, on any thread; otherwise nothing is counted. A row
// is a key of one key-value head, read where one of the group's queries gives it weight. One at a time.
class ValueRowCount {
 public:
  ValueRowCount();
  ~ValueRowCount();
  ValueRowCount(const ValueRowCount&) = delete;
  ValueRowCount& operator=(const ValueRowCount&) = delete;
  static ValueRowCount* current();  // null: none lives
  void add(int64_t rows) { rows_ += rows; }
  int64_t rows() const { return rows_; }

 private:
  std::atomic<int64_t> rows_ = 0;
};

}  // namespace lazy::ops
