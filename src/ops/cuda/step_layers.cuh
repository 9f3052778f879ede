// What the parts of step_layers.cu share: its arguments, a block's shared memory, matrices and their slots.
//
// A block is a multiprocessor. Its kWorkers warps multiply and attend, one more warp brings the weights: they flow
// through a ring of slots in shared memory, in the order of their use, and wait for nothing but room.
#pragma once
#include "attention/cuda/decode_products.cuh"
#include "attention/cuda/hopper_copies.cuh"
#include "ops/cuda/few_rows.cuh"
#include "ops/cuda/flagged_words.cuh"

namespace lazy::ops::cuda::step {

namespace decoding = kernels::cuda::decoding;

constexpr int kWorkers = kParts, kWorkerThreads = 32 * kWorkers, kLayerThreads = kWorkerThreads + 32;
constexpr int kMostLayers = 30;  // of a launch
constexpr int kUnits = 3;        // units of a matrix that are multiplied at once
constexpr int kMostSlots = 6;

// Keys of a warp's scores; of a piece, whose values are summed together; that lie on one page. As decode divides them
// in a step of a model (attention/cuda/decode.cu).
constexpr int kPart = 64, kPiece = 128, kUnitKeys = decoding::kPad;
constexpr int kPieces = 64;    // of a block, whose places are found once
constexpr int kScores = 2048;  // of a block, that are kept in shared memory

struct Layers {
  decoding::Params attention;  // what is a layer's own is the layer's
  ToPages pages;               // positions, slots, table, interleaved, heads, kv_heads, dim
  int hidden, inner;
  float eps;
  const void* x;  // before the first layer
  void* y;        // behind the last one
  // Two numbers of T a word: x in front of a layer, q with k and v, attention's results, x within a layer, SwiGLU's
  // results. A float a word: largest score and sum of exponentials (heads, max_parts, 2); sums of pieces (heads,
  // max_pieces, dim).
  Word *stream, *heads, *attended, *middle, *activated, *parts, *sums;
  int max_pieces;
  uint32_t* counter;  // (2): the last flag in use; blocks that are done
  int count, slots, worker_bytes;
  StepLayer layers[kMostLayers];
};
static_assert(sizeof(Layers) <= 4 << 10);

// A piece of a head's keys, and where its units lie in the cache, before the head's offset.
struct Piece {
  int head, number;
  int64_t at[kPiece / kUnitKeys];
};

// The results of a product: its parts' numbers, unit by unit, for whole warps; the parts' sums of squares.
struct ProductRoom {
  float products[kParts][(kUnits * 16 + 31) / 32 * 32], squares[kParts];
};

template <int D>
struct Shared {
  uint64_t full[kMostSlots], empty[kMostSlots];
  ProductRoom rooms[2];  // in turn: some warps are still at the product in front
  float scores[kScores];
  float2 angles[D / 2];  // cosines and sines of the token's pairs
  int64_t slot, length;  // of the token, of its sequence
  Piece pieces[kPieces], other[kWorkers];
};

// The matrices of a layer. A unit is what a block multiplies at least: so many rows, of which SwiGLU and the pairs of
// RoPE have one half each. A block has every gridDim.x'th unit. A slot has some columns of a unit, whose rows are apart
// by a little more, so that eight of them lie in all banks.
enum class Kind { heads, output, gate_up, down };
__host__ __device__ constexpr bool has_halves(Kind kind) { return kind == Kind::heads || kind == Kind::gate_up; }
__host__ __device__ constexpr int rows_of(Kind kind) { return has_halves(kind) ? 16 : 8; }
__host__ __device__ constexpr int columns_of(Kind kind) { return 8192 / rows_of(kind); }
__host__ __device__ constexpr int pitch_of(Kind kind) { return 2 * columns_of(kind) + 64; }
constexpr int kSlotBytes = 16 * pitch_of(Kind::heads);
static_assert(kSlotBytes >= 8 * pitch_of(Kind::down));
constexpr int kColumnsAtOnce = kParts * kChunk;  // a matrix has a multiple of them

struct Matrix {
  const void* W;
  int in, units;
};
__device__ inline Matrix matrix_of(const Layers& s, const StepLayer& l, Kind kind) {
  const int heads = s.attention.heads, dim = s.attention.head_dim;
  switch (kind) {
    case Kind::heads:
      return {l.qkv, s.hidden, 3 * heads * dim / 16};
    case Kind::output:
      return {l.output, heads * dim, s.hidden / 8};
    case Kind::gate_up:
      return {l.gate_up, s.hidden, s.inner / 8};
    case Kind::down:
      return {l.down, s.inner, s.hidden / 8};
  }
  __builtin_unreachable();
}
// From one end or the other: some blocks have a unit more than others, but not of every matrix.
__device__ inline int first_unit(Kind kind) {
  const int block = blockIdx.x, blocks = gridDim.x;
  return kind == Kind::gate_up || kind == Kind::output ? blocks - 1 - block : block;
}
// Of a unit's row r in the matrix.
__device__ inline int row_of_unit(const Layers& s, Kind kind, int unit, int r) {
  switch (kind) {
    case Kind::heads: {
      const Pair pair = pair_of(s.pages, unit * 8 + r % 8);
      return pair.head * s.attention.head_dim + (r < 8 ? pair.first : pair.second);
    }
    case Kind::gate_up:
      return (r < 8 ? 0 : s.inner) + unit * 8 + r % 8;
    default:
      return unit * 8 + r;
  }
}

// A place in the ring, and in which round.
struct Slot {
  int number = 0, round = 0;
  __device__ void advance(int slots) {
    if (++number == slots) number = 0, round ^= 1;
  }
};

}  // namespace lazy::ops::cuda::step
