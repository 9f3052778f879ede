// The keys that a query sees. This is the single definition of masks, windows, packed documents and cache offsets for
// all kernels.
#pragma once
#include <algorithm>
#include <cstdint>

#include "lazy/attention.h"

namespace lazy::kernels {

// One document: a batch entry, or one span of packed tokens.
struct Sequence {
  int64_t batch = 0;                  // index along the tensors' batch axis
  int64_t q_begin = 0, q_length = 0;  // range of tokens along the token axis of q; k_begin and k_length: of k and v
  int64_t k_begin = 0, k_length = 0;
};

struct KeyRange {  // the keys begin, ..., end - 1 of a sequence
  int64_t begin = 0, end = 0;
  int64_t count() const { return end - begin; }
};

inline int64_t sequence_count(const Problem& p) { return p.cu_seqlens_q ? p.sequences : p.batch; }

inline Sequence sequence(const Problem& p, int64_t index) {
  if (!p.cu_seqlens_q) return {index, 0, p.q_length, 0, p.k_length};
  return {0, p.cu_seqlens_q[index], p.cu_seqlens_q[index + 1] - p.cu_seqlens_q[index], p.cu_seqlens_k[index],
          p.cu_seqlens_k[index + 1] - p.cu_seqlens_k[index]};
}

// Returns the key index that corresponds to the position of query `row` of the sequence. It is negative for the first
// rows if there are more queries than keys.
inline int64_t position(const Sequence& s, int64_t row) { return row + s.k_length - s.q_length; }

// Returns the keys that query `row` sees. Both ends of the range are nondecreasing in `row`. Empty ranges have begin ==
// end.
inline KeyRange visible_keys(const Problem& p, const Sequence& s, int64_t row) {
  const int64_t here = position(s, row);
  int64_t begin = 0, end = s.k_length;
  if (p.causal) end = std::clamp<int64_t>(here + 1, 0, s.k_length);
  if (p.window >= 0) {
    begin = std::clamp<int64_t>(here - p.window + 1, 0, end);
    if (!p.causal) end = std::clamp<int64_t>(here + p.window, begin, end);
  }
  return {begin, end};
}

}  // namespace lazy::kernels
