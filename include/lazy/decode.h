// Decode attention: one or a few query rows per sequence against a long KV cache, contiguous or paged. Each score is
// computed only once and stored (one float per key and query row), and only the rows of V with a nonzero weight are
// read.
#pragma once
#include "lazy/attention.h"

namespace lazy::kernels {

// Arguments of decode attention (forward only). Problem::batch is the number of sequences, each with q_length rows;
// Problem::k_length is not used and cu_seqlens are null.
//
// A sequence has n cached keys, including the keys at the positions of its query rows. Row i is at position n -
// q_length + i and sees the keys that lazy/visibility.h defines for k_length = n. Real is float for the kernels and
// double for the reference.
template <typename Real>
struct Decode {
  ConstView q;  // shape (batch, q_length, heads, head_dim)
  // The caches. Contiguous caches have the shape (batch, capacity, kv_heads, dim). Paged caches have the shape (pages,
  // page_size, kv_heads, dim), where key j of sequence b is token j % page_size of page block_table[b * table_width + j
  // / page_size].
  ConstView k, v;
  const int64_t* lengths = nullptr;      // shape (batch): number of cached keys per sequence
  const int64_t* block_table = nullptr;  // shape (batch, table_width); null: contiguous caches
  int64_t table_width = 0, page_size = 0;
  // For caches from which keys were evicted: the number c of visible keys from which elastic's offset (tau / c) and the
  // sigmoid bias (-ln c) of the last query row are computed, in place of the number of cached keys. Row i uses c -
  // (q_length - 1 - i). Shape (batch), or null.
  const int64_t* visible_counts = nullptr;
  const Real* distance_bias = nullptr;  // shapes of this and the next three parameters: see Forward
  const Real* tau = nullptr;
  const Real* sink = nullptr;
  const Real* alibi_slopes = nullptr;
  View out;                     // shape (batch, q_length, heads, value_dim)
  Real* lse = nullptr;          // shape (batch, heads, q_length), see Forward
  Real* stats = nullptr;        // shape (3, batch, heads, q_length), see Forward; or null
  Real* score_stats = nullptr;  // shape (2, batch, heads, q_length), see Forward; or null
  // Counters to which the kernel adds the number of rows of V that it reads; shape (batch, kv_heads), or null. It reads
  // a row of V if the weight is nonzero for at least one query row of the heads that share the kv head. Only the fast
  // CPU kernel writes them.
  int64_t* value_rows = nullptr;
};

// Runs the fast CPU kernel (src/attention/cpu), which is parallel over keys. Results are bit-identical for every number
// of threads. Throws std::invalid_argument with the text of unmet_condition if it does not support the problem.
void decode(const Problem& problem, const Decode<float>& arguments);

namespace reference {
// The reference implementation, which defines the operator: float64, simple loops. Requires dtype f64.
void decode(const Problem& problem, const Decode<double>& arguments);
}  // namespace reference

// Returns the number of visible keys from which elastic's offset and the sigmoid bias of query row `row` are computed.
// `visible` is the number of cached keys that the row sees.
template <typename Real>
int64_t offset_count(const Problem& p, const Decode<Real>& a, int64_t batch, int64_t row, int64_t visible) {
  return a.visible_counts ? a.visible_counts[batch] - (p.q_length - 1 - row) : visible;
}

}  // namespace lazy::kernels
