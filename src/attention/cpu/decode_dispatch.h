// What the decode driver and its vector code say to each other.
#pragma once
#include "attention/cpu/block.h"
#include "lazy/decode.h"

namespace lazy::kernels::cpu {

// One sequence of the batch. Rows are (kv head, query head of its group, query): neighbours share keys.
struct DecodeSequence {
  int64_t batch = 0;
  int64_t keys_begin = 0, keys_end = 0;  // what any row sees; columns of a strip are keys minus keys_begin
  size_t q_stride = 0, v_stride = 0;     // dims rounded up to 16
  size_t strip = 0;                      // row stride of the scores
  float* q = nullptr;                    // (rows, q_stride)
  float* scores = nullptr;               // (rows, strip): scores, then weights
};

// Fills q.
void decode_load(const Problem& p, const Decode<float>& a, const DecodeSequence& s);
// Scores of the keys [begin, end) for all rows.
void decode_scores(const Problem& p, const Decode<float>& a, const DecodeSequence& s, int64_t begin, int64_t end);
// One row's scores to weights, and its lse and statistics.
void decode_normalize(const Problem& p, const Decode<float>& a, const DecodeSequence& s, int64_t row,
                      const HeadParameters& head);
// out (rows, v_stride) = weighted sums over the keys [begin, end).
void decode_values(const Problem& p, const Decode<float>& a, const DecodeSequence& s, int64_t begin, int64_t end,
                   float* out);
// Adds `count` results of decode_values in order (`step` floats apart) and stores the row.
void decode_store(const Problem& p, const Decode<float>& a, const DecodeSequence& s, int64_t row, float* parts,
                  size_t count, size_t step);

// Row of the order above -> head and query.
struct DecodeRow {
  int64_t head, query;
};
inline DecodeRow decode_row(const Problem& p, int64_t row) { return {row / p.q_length, row % p.q_length}; }

}  // namespace lazy::kernels::cpu
