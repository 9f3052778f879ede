// Shared code of fused_decode_layers.cu: kernel arguments, shared memory of a block, and the assignment of matrix rows
// to blocks.
//
// There is one block per multiprocessor. In each block, kWorkers worker warps compute products and attention. One more
// warp loads the weights, in the order in which they are used, to a ring buffer of slots in shared memory. It only
// waits for free slots.
#pragma once
#include "attention/cuda/decode_products.cuh"
#include "attention/cuda/hopper_copies.cuh"
#include "ops/cuda/flagged_words.cuh"
#include "ops/cuda/skinny_gemm.cuh"

namespace lazy::ops::cuda::step {

namespace decoding = kernels::cuda::decoding;

constexpr int kWorkers = kParts, kWorkerThreads = 32 * kWorkers, kLayerThreads = kWorkerThreads + 32;
constexpr int kMaxLayers = 30;  // maximum number of layers per launch
// Number of units (groups of matrix rows) that a worker warp multiplies at the same time.
constexpr int kUnits = 3;
constexpr int kMaxSlots = 6;

// The keys of a head are divided at three levels. A part (kPart keys) is the number of keys whose scores one warp
// computes. A piece (kPiece keys, two parts) is the number of keys whose values are summed together. A unit (kUnitKeys
// keys) is on one page of the cache. The separate decode kernels divide the keys in the same way
// (attention/cuda/decode.cu), so that the results are bitwise equal.
constexpr int kPart = 64, kPiece = 128, kUnitKeys = decoding::kPad;
// Maximum number of pieces per block whose cache offsets are computed once per launch and stored. The offsets of
// further pieces are computed at each use.
constexpr int kPieces = 64;
constexpr int kScores = 2048;  // number of scores that fit in shared memory; more scores are stored in global memory

struct Layers {
  decoding::Params attention;  // parameters of attention; fields that differ between layers are set per layer
  PageTarget pages;            // fields in use: positions, slots, table, interleaved, heads, kv_heads, dim
  int hidden, inner;
  float eps;
  const void* x;  // input of the first layer
  void* y;        // output of the last layer
  // Buffers of words that the blocks exchange. The words of the following buffers contain two elements of type T: x
  // before a layer (stream), q, k and v (heads), attention outputs (attended), x within a layer (middle), SwiGLU
  // outputs (activated). The words of the other buffers contain one float: the largest score and the sum of
  // exponentials of each part (parts: heads, max_parts, 2), and the weighted value sums of the pieces (sums: heads,
  // max_pieces, dim).
  Word *stream, *heads, *attended, *middle, *activated, *parts, *sums;
  int max_pieces;
  uint32_t* counter;  // (2): the last flag that was used, and the number of blocks that have finished
  int count, slots, worker_bytes;
  FusedDecodeLayer layers[kMaxLayers];
};
static_assert(sizeof(Layers) <= 4 << 10);

// A piece of the keys of a head (kPiece keys), and the cache offset of each unit (kUnitKeys keys) of the piece, without
// the offset of the head.
struct KeyPiece {
  int head, number;
  int64_t at[kPiece / kUnitKeys];
};

// Results of a product. The inner dimension is divided into kParts parts. For each part, the struct contains the sums
// of all units (groups of matrix rows), padded to whole warps, and the sum of squares of x.
struct ProductRoom {
  float products[kParts][(kUnits * 16 + 31) / 32 * 32], squares[kParts];
};

template <int D>
struct StepShared {
  uint64_t full[kMaxSlots], empty[kMaxSlots];
  ProductRoom rooms[2];  // used alternately, because some warps may still read the results of the previous product
  float scores[kScores];
  float2 angles[D / 2];  // cosine and sine of each RoPE pair at the position of the token
  int64_t slot, length;  // cache slot of the token; length of its sequence
  KeyPiece pieces[kPieces], other[kWorkers];
};

// The matrices of a layer. A unit is the smallest number of rows that a block multiplies. For gate_up, eight rows of a
// unit are from the gate half of the matrix and eight rows are from the up half. For heads, eight rows yield the first
// elements of RoPE pairs and eight rows yield the second elements. Every gridDim.x-th unit belongs to the same block. A
// slot of the ring buffer contains some columns of a unit. The rows in a slot are padded, so that eight rows are in
// different banks.
enum class MatrixKind { heads, output, gate_up, down };
__host__ __device__ constexpr bool has_halves(MatrixKind kind) {
  return kind == MatrixKind::heads || kind == MatrixKind::gate_up;
}
__host__ __device__ constexpr int rows_of(MatrixKind kind) { return has_halves(kind) ? 16 : 8; }
__host__ __device__ constexpr int columns_of(MatrixKind kind) { return 8192 / rows_of(kind); }
__host__ __device__ constexpr int pitch_of(MatrixKind kind) { return 2 * columns_of(kind) + 64; }
constexpr int kSlotBytes = 16 * pitch_of(MatrixKind::heads);
static_assert(kSlotBytes >= 8 * pitch_of(MatrixKind::down));
constexpr int kColumnsAtOnce = kParts * kChunk;  // the width of a matrix must be a multiple of this number

struct Matrix {
  const void* W;
  int in, units;
};
__device__ inline Matrix matrix_of(const Layers& s, const FusedDecodeLayer& l, MatrixKind kind) {
  const int heads = s.attention.heads, dim = s.attention.head_dim;
  switch (kind) {
    case MatrixKind::heads:
      return {l.qkv, s.hidden, 3 * heads * dim / 16};
    case MatrixKind::output:
      return {l.output, heads * dim, s.hidden / 8};
    case MatrixKind::gate_up:
      return {l.gate_up, s.hidden, s.inner / 8};
    case MatrixKind::down:
      return {l.down, s.inner, s.hidden / 8};
  }
  __builtin_unreachable();
}
// Returns the first unit of this block. For some matrices, units are assigned to blocks in descending order, so that
// the blocks with one unit more than the others are not the same for all matrices.
__device__ inline int first_unit(MatrixKind kind) {
  const int block = blockIdx.x, blocks = gridDim.x;
  return kind == MatrixKind::gate_up || kind == MatrixKind::output ? blocks - 1 - block : block;
}
// Returns the index in the matrix of row r of a unit.
__device__ inline int row_of_unit(const Layers& s, MatrixKind kind, int unit, int r) {
  switch (kind) {
    case MatrixKind::heads: {
      const RopePair pair = pair_of(s.pages, unit * 8 + r % 8);
      return pair.head * s.attention.head_dim + (r < 8 ? pair.first : pair.second);
    }
    case MatrixKind::gate_up:
      return (r < 8 ? 0 : s.inner) + unit * 8 + r % 8;
    default:
      return unit * 8 + r;
  }
}

// A position in the ring buffer: the slot, and the parity of the current round through the buffer.
struct RingSlot {
  int number = 0, round = 0;
  __device__ void advance(int slots) {
    if (++number == slots) number = 0, round ^= 1;
  }
};

}  // namespace lazy::ops::cuda::step
