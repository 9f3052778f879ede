// Decoding: one to a few query rows per sequence against a long key/value cache, contiguous or paged. Scores are
// computed once and stored (one float per key and row), and only the rows of V with nonzero weight are read.
#pragma once
#include "lazy/attention.h"

namespace lazy::kernels {

// Problem: batch sequences of q_length rows each; k_length is not used, cu_seqlens are null. Forward-only.
//
// Row i of a sequence with n cached keys (its own among them) stands at position n - q_length + i and sees what
// lazy/visibility.h says for k_length = n. Real is float, and double for the reference.
template <typename Real>
struct Decode {
  ConstView q;  // (batch, q_length, heads, head_dim)
  // Contiguous: (batch, capacity, kv_heads, dim). Paged: (pages, page_size, kv_heads, dim), where key j of sequence b
  // is token j % page_size of page block_table[b * table_width + j / page_size].
  ConstView k, v;
  const int64_t* lengths = nullptr;      // (batch): cached keys
  const int64_t* block_table = nullptr;  // (batch, table_width); null: contiguous
  int64_t table_width = 0, page_size = 0;
  // (batch) or null: the count c that offset and sigmoid bias use for the last row, for caches that have evicted keys;
  // row i has c - (q_length - 1 - i).
  const int64_t* visible_counts = nullptr;
  const Real* distance_bias = nullptr;  // as in Forward
  const Real* tau = nullptr;
  const Real* sink = nullptr;
  const Real* alibi_slopes = nullptr;
  View out;                     // (batch, q_length, heads, value_dim)
  Real* lse = nullptr;          // (batch, heads, q_length), as in Forward
  Real* stats = nullptr;        // (3, batch, heads, q_length), as in Forward, or null
  Real* score_stats = nullptr;  // (2, batch, heads, q_length), as in Forward, or null
  // (batch, kv_heads), added to, or null: rows of V that are read, those to which a query row of the group gives
  // weight. On the CPU, by the fast kernel.
  int64_t* value_rows = nullptr;
};

// The fast kernel (src/attention/cpu), split over keys and threads; bit-identical for every number of threads. Throws
// std::invalid_argument with unmet_condition's text.
void decode(const Problem& problem, const Decode<float>& arguments);

namespace reference {
// The definition: float64, plain loops. dtype f64.
void decode(const Problem& problem, const Decode<double>& arguments);
}  // namespace reference

// The count that the offset of `row` uses, given its visible keys.
template <typename Real>
int64_t offset_count(const Problem& p, const Decode<Real>& a, int64_t batch, int64_t row, int64_t visible) {
  return a.visible_counts ? a.visible_counts[batch] - (p.q_length - 1 - row) : visible;
}

}  // namespace lazy::kernels
