// What the decode kernels receive, by value, and how their work is divided.
//
// Query rows that share a kv head are worked on in tiles of kRows. A key item is kWarps * part keys of a tile: scores, and
// each warp's largest score and sum of exponentials. A value item is chunks * kWarps * scan keys: weights, and the sum over
// those rows of V that carry weight. Items wait in one queue in an order that puts a value item behind all key items it
// needs; the last block to finish a tile's key items completes its rows, the last to finish its value items adds them up.
// Scores are kept from a tile's key items to its value items only: their memory is used again before it leaves the
// second-level cache.
#pragma once
#include <bit>

#include "attention/cuda/params.h"
#include "lazy/decode_cuda.h"

namespace lazy::kernels::cuda::decoding {

constexpr int kWarps = 4, kThreads = 32 * kWarps;
constexpr int kRows = 8;                    // n of mma.sync
constexpr int kPad = 16;                    // keys are multiplied 16 at a time: m, or k, of mma.sync

// Written by the plan kernel.
struct Sequence {
  int length;                               // -1: out of range, the results are NaN
  int first, end;                           // keys that any row sees; first is rounded down to kPad
};

// From a row's score to its weight.
struct alignas(16) RowState {
  float largest;                            // score
  float inverse;                            // 1 / sum of exponentials; the threshold of sparsemax and entmax15
  float offset;                             // elastic: tau / c or tau; sigmoid: beta
  float dead;                               // softmax and its like: weights up to this are none
  float lift;                               // a power of two that keeps weights in the range of fp16
  int begin, end;                           // visible keys
  int unused;
};

// A number to divide by, for dividends below 2^30: a product's upper half, shifted.
struct Divisor {
  int value = 1;
  uint32_t factor = 0, shift = 0;
  Divisor() = default;
  explicit Divisor(int x) : value(x) {
    if (x == 1) return;
    shift = static_cast<uint32_t>(std::bit_width(static_cast<uint32_t>(x - 1)) - 1);  // 2^shift < x <= 2^(shift + 1)
    factor =
        static_cast<uint32_t>(((uint64_t{1} << (32 + shift)) + static_cast<uint64_t>(x) - 1) / static_cast<uint64_t>(x));
  }
  constexpr int divide(int n) const {
    if (value == 1) return n;
    return static_cast<int>((static_cast<uint64_t>(static_cast<uint32_t>(n)) * factor >> 32) >> shift);
  }
};

struct Params {
  Tensor q, k, v, out;
  const float *distance_bias, *tau, *sink, *alibi_slopes;
  float *lse, *stats;
  const int64_t *lengths, *block_table, *visible_counts;
  int64_t table_width, pages;
  Divisor page_size;
  int capacity;
  int batch, q_length, heads, kv_heads, head_dim, value_dim;
  int window, bias_window;
  float scale, sigmoid_bias;
  DType dtype;
  Normalizer normalizer;
  bool causal, per_visible, q_aligned;

  int group, rows, tiles;                   // heads a kv head; rows a kv head; tiles of them
  int part, scan, chunks;                   // keys of a warp, as above; all follow from the problem's shape
  int columns;                              // of a row of scores
  int most_parts, most_spans;               // warps' parts, and value items, of a row at most
  int blocks;                               // of kv heads; a unit is such a block of one sequence
  int units, unit_tiles;                    // in all; tiles of one
  int lag;                                  // units by which value items stand behind key items
  int slots;                                // units whose scores are kept at a time: unit n has slot n % slots
  int warp_bytes;                           // shared memory

  // The workspace. Rows count as in lse: (batch, heads, q_length).
  float* scores;                            // (slots, rows of a unit, columns); key j of a sequence is column j - first
  float2* parts;                            // (rows, most_parts): largest score, sum of exponentials relative to it
  RowState* states;                         // (rows)
  float* sums;                              // (rows, most_spans, value_dim): weighted sums of V
  float2* masses;                           // (rows, most_spans): sum of weights; alive keys, an int
  float* firsts;                            // (rows): weight on the first key, where it is visible
  Sequence* sequences;                      // (batch)
  int* phases;                              // first item of each phase, then their total
  int *queue, *done_keys, *done_values, *state;  // the next item; of each tile, finished items and its TileState
  int counters;                             // the number of these, which lie together
};

enum TileState : int { kWaiting, kRowsComplete, kValuesComplete };

// Phase 2 n: the key items of unit n. Phase 2 n + 1: the value items of unit n - lag.
constexpr int phase_count(const Params& p) { return 2 * (p.units + p.lag); }
constexpr int unit_of_phase(const Params& p, int phase) { return phase / 2 - (phase % 2 ? p.lag : 0); }

// Products by tensor cores, up to this head size; 2-byte types, 16-byte loads of K and V.
void decode_64(const Params& p, cudaStream_t stream);
void decode_128(const Params& p, cudaStream_t stream);
void decode_256(const Params& p, cudaStream_t stream);
void decode_plain(const Params& p, cudaStream_t stream);  // every problem, fp32 arithmetic

}  // namespace lazy::kernels::cuda::decoding
