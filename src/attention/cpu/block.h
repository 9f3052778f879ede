// The interface between the drivers, which divide the work among threads, and the vector code, which is compiled once
// per instruction set. It defines packed keys, blocks of query rows and the entry points of the vector code, which
// choose the best instruction set at run time.
#pragma once
#include <cstddef>

#include "lazy/attention.h"
#include "lazy/decode.h"
#include "lazy/visibility.h"

namespace lazy::kernels::cpu {

// Keys are packed in chunks of this number of keys. It is a multiple of kPanel (products-inl.h) of every instruction
// set.
constexpr size_t kKeyChunk = 64;
inline size_t round_up(size_t n, size_t to) { return (n + to - 1) / to * to; }

// fp32 copies of the keys and values of one kv head in one sequence, in the layouts that the matrix products need:
//   panels: shape (key / P, dim, key % P), where P is the number of columns of a register block
//   rows: slices of up to 64 dimensions, each of shape (key, dim); their number of dimensions is a multiple of 16
// Storing rows in slices distributes the keys evenly over the sets of the L1 cache.
struct PackedKeys {
  float* k_panels = nullptr;
  float* v_panels = nullptr;          // only used by the backward
  float* k_rows = nullptr;            // only used by the backward
  float* v_rows = nullptr;            // only used by the forward
  size_t k_stride = 0, v_stride = 0;  // head sizes of keys and values, rounded up to a multiple of 16
  size_t keys = 0;                    // number of keys, rounded up to a multiple of kKeyChunk
};
constexpr size_t kSlice = 64;

// A block of consecutive query rows of one head.
struct RowBlock {
  Sequence sequence;
  int64_t head = 0;
  int64_t first = 0, rows = 0;           // first: index of the first row within the sequence; rows: number of rows
  int64_t keys_begin = 0, keys_end = 0;  // range of the keys that the rows see, widened to whole chunks of kKeyChunk
};

inline RowBlock row_block(const Problem& p, const Sequence& s, int64_t head, int64_t first, int64_t rows) {
  RowBlock b{s, head, first, std::min(rows, s.q_length - first)};
  const int64_t chunk = kKeyChunk;
  b.keys_begin = visible_keys(p, s, b.first).begin / chunk * chunk;
  b.keys_end = visible_keys(p, s, b.first + b.rows - 1).end;
  b.keys_end = b.keys_end <= b.keys_begin ? b.keys_begin : (b.keys_end + chunk - 1) / chunk * chunk;
  return b;
}

// Row stride, in floats, of a matrix of scores (rows x keys). The 16 extra floats make rows use different cache sets.
inline size_t strip_stride(size_t columns) { return columns + 16; }

// Factor by which the products of queries and keys are multiplied when they are stored. The result is the score before
// the distance bias, or the argument of tanh if there is a softcap.
inline float product_scale(const Problem& p) {
  return static_cast<float>(p.softcap > 0 ? p.scale / p.softcap : p.scale);
}

constexpr int64_t kMaxRows = 60;
// Returns the number of rows per block: the largest number for which `strips` matrices of scores with `longest` columns
// fit in L2, at most kMaxRows. It is a multiple of 6, the number of rows of a register block.
int64_t rows_per_block(const Problem& p, int64_t longest, int strips);

// Table of the distance bias by signed distance e = key - position. With W = bias_window, the bias for -W < e < W is
// stored at [W - 1 + e], so that the biases of a row of scores are contiguous. The table of one head has
// symmetric_bias_size(W) entries.
inline size_t symmetric_bias_size(int64_t w) { return w > 0 ? round_up(static_cast<size_t>(2 * w - 1), 16) : 0; }

struct HeadParameters {
  const float* symmetric_bias = nullptr;
  float alibi_slope = 0;
  float tau = 0;
  float sink = 0;
};

// Sums of gradients over the row blocks of one split. backward.cc divides the row blocks of a kv head into splits.
struct GradientSlab {
  float* d_k = nullptr;               // shape (keys, k_stride)
  float* d_v = nullptr;               // shape (keys, v_stride)
  float* d_symmetric_bias = nullptr;  // gradient of the distance bias (symmetric_bias_size) of the row block's head
  double* d_scalars = nullptr;        // gradients of tau, sink and ALiBi slope of the row block's head
};

// Size of the scratch memory of forward_block and backward_block in floats.
size_t forward_scratch(const Problem& p, int64_t rows, int64_t columns);
size_t backward_scratch(const Problem& p, int64_t rows, int64_t columns);

// Fills the arrays of `packed` for the keys [begin, end). `begin` must be a multiple of kKeyChunk.
void pack_keys(const Problem& p, const ConstView& k, const ConstView& v, const Sequence& s, int64_t kv_head,
               int64_t begin, int64_t end, const PackedKeys& packed);
void forward_block(const Problem& p, const Forward<float>& a, const RowBlock& block, const HeadParameters& head,
                   const PackedKeys& packed, float* scratch);
void backward_block(const Problem& p, const Backward<float>& a, const RowBlock& block, const HeadParameters& head,
                    const PackedKeys& packed, const GradientSlab& slab, float* scratch);
// Adds the `count` arrays `slabs` in order, multiplies the sum by `scale`, and stores the rows [begin, end) in `out`.
void store_sum(DType dtype, const float* const* slabs, size_t count, size_t stride, int64_t begin, int64_t end,
               size_t dim, float scale, const View& out, int64_t batch, int64_t first_token, int64_t head);

// One sequence of the batch in decode. Its query rows are ordered by (kv head, query head within the kv head's group,
// query), so that rows that share keys are consecutive.
struct DecodeSequence {
  int64_t batch = 0;
  int64_t keys_begin = 0, keys_end = 0;  // keys that at least one row sees; the column of a key is key - keys_begin
  size_t q_stride = 0, v_stride = 0;     // head sizes rounded up to 16
  size_t strip = 0;                      // row stride of the scores
  float* q = nullptr;                    // shape (rows, q_stride)
  float* scores = nullptr;               // shape (rows, strip): first the scores, then the weights computed from them
};

// Fills s.q with fp32 copies of the queries.
void decode_load(const Problem& p, const Decode<float>& a, const DecodeSequence& s);
// Computes the scores of the keys [begin, end) for all rows.
void decode_scores(const Problem& p, const Decode<float>& a, const DecodeSequence& s, int64_t begin, int64_t end);
// Converts one row's scores to weights and stores its lse and statistics.
void decode_normalize(const Problem& p, const Decode<float>& a, const DecodeSequence& s, int64_t row,
                      const HeadParameters& head);
// Computes `out` (rows, v_stride), the weighted sums of the values of the keys [begin, end).
void decode_values(const Problem& p, const Decode<float>& a, const DecodeSequence& s, int64_t begin, int64_t end,
                   float* out);
// Adds, in order, the partial sums of one row that decode_values computed for `count` ranges of keys, and stores the
// row of the output. Consecutive partial sums are `step` floats apart in `parts`.
void decode_store(const Problem& p, const Decode<float>& a, const DecodeSequence& s, int64_t row, float* parts,
                  size_t count, size_t step);

struct DecodeRow {
  int64_t head, query;
};
// Returns the head and the query of a row of DecodeSequence.
inline DecodeRow decode_row(const Problem& p, int64_t row) { return {row / p.q_length, row % p.q_length}; }

}  // namespace lazy::kernels::cpu
