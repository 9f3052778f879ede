// The interface between the drivers (plain C++, threads) and the vector code (one copy per instruction set): packed
// keys, blocks of query rows, and the vector code's entry points, which choose the best instruction set at run time.
#pragma once
#include <cstddef>

#include "lazy/attention.h"
#include "lazy/decode.h"
#include "lazy/visibility.h"

namespace lazy::kernels::cpu {

constexpr size_t kKeyChunk = 64;  // a multiple of every instruction set's panel width
inline size_t round_up(size_t n, size_t to) { return (n + to - 1) / to * to; }

// fp32 copies of one sequence's keys and values of one kv head, laid out for the products. Panels are groups of as
// many keys as a register block is wide, dimension-major: (key / P, dim, key % P). Rows are (key, dim), with the dims
// rounded up to 16 and cut into slices of 64, one slice of all keys after the other: a run of keys is then a run of
// memory, which L1's sets hold evenly.
struct PackedKeys {
  float* k_panels = nullptr;
  float* v_panels = nullptr;          // backward only
  float* k_rows = nullptr;            // backward only
  float* v_rows = nullptr;            // forward only
  size_t k_stride = 0, v_stride = 0;  // dims rounded up to 16
  size_t keys = 0;                    // rounded up to kKeyChunk
};
constexpr size_t kSlice = 64;

// A block of consecutive query rows of one head.
struct RowBlock {
  Sequence sequence;
  int64_t head = 0;
  int64_t first = 0, rows = 0;           // within the sequence
  int64_t keys_begin = 0, keys_end = 0;  // union of the rows' visible keys, widened to chunks of kKeyChunk
};

inline RowBlock row_block(const Problem& p, const Sequence& s, int64_t head, int64_t first, int64_t rows) {
  RowBlock b{s, head, first, std::min(rows, s.q_length - first)};
  const int64_t chunk = kKeyChunk;
  b.keys_begin = visible_keys(p, s, b.first).begin / chunk * chunk;
  b.keys_end = visible_keys(p, s, b.first + b.rows - 1).end;
  b.keys_end = b.keys_end <= b.keys_begin ? b.keys_begin : (b.keys_end + chunk - 1) / chunk * chunk;
  return b;
}

// Row stride of a strip of scores: 16 more than the columns, so that rows do not fall on the same cache sets.
inline size_t strip_stride(size_t columns) { return columns + 16; }

// What the products of queries and keys are multiplied by when they are stored: scores before the distance bias, with a
// softcap the argument of its tanh.
inline float product_scale(const Problem& p) {
  return static_cast<float>(p.softcap > 0 ? p.scale / p.softcap : p.scale);
}

constexpr int64_t kMostRows = 60;
// Rows of a block: as many as keep the strips of scores within L2, a multiple of 6 (the register block's rows), at most
// kMostRows.
int64_t rows_per_block(const Problem& p, int64_t longest, int strips);

// Bias over signed distance e = key - position, -W < e < W, at [W - 1 + e]: the score of a row adds a contiguous span.
// One head has symmetric_bias_size(W) entries.
inline size_t symmetric_bias_size(int64_t w) { return w > 0 ? round_up(static_cast<size_t>(2 * w - 1), 16) : 0; }

struct HeadParameters {
  const float* symmetric_bias = nullptr;
  float alibi_slope = 0;
  float tau = 0;
  float sink = 0;
};

// Sums of one (kv head, split), added to across row blocks.
struct GradientSlab {
  float* d_k = nullptr;               // (keys, k_stride)
  float* d_v = nullptr;               // (keys, v_stride)
  float* d_symmetric_bias = nullptr;  // of the block's head
  double* d_scalars = nullptr;        // of the block's head: tau, sink, alibi slope
};

size_t forward_scratch(const Problem& p, int64_t rows, int64_t columns);  // floats
size_t backward_scratch(const Problem& p, int64_t rows, int64_t columns);

// Fills what `packed` points to for the keys [begin, end); begin is a multiple of kKeyChunk.
void pack_keys(const Problem& p, const ConstView& k, const ConstView& v, const Sequence& s, int64_t kv_head,
               int64_t begin, int64_t end, const PackedKeys& packed);
void forward_block(const Problem& p, const Forward<float>& a, const RowBlock& block, const HeadParameters& head,
                   const PackedKeys& packed, float* scratch);
void backward_block(const Problem& p, const Backward<float>& a, const RowBlock& block, const HeadParameters& head,
                    const PackedKeys& packed, const GradientSlab& slab, float* scratch);
// Adds `slabs` arrays of keys rows in order and stores rows [begin, end) times `scale`.
void store_sum(DType dtype, const float* const* slabs, size_t count, size_t stride, int64_t begin, int64_t end,
               size_t dim, float scale, const View& out, int64_t batch, int64_t first_token, int64_t head);

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
