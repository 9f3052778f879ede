// Two-layer fast weights with momentum, with the state distributed over a cluster of blocks. Each block has the state
// of 64 hidden columns: 64 columns of the first layer's matrices and 64 rows of the last layer's matrices. This state
// stays in the shared memory of the block between the chunks. Sums over all hidden columns are sums over the blocks, in
// the order of their ranks. Each block computes these sums for a quarter of the tokens of the chunk; it is said to own
// these tokens.
#pragma once
#include "ops/cuda/fast_weights.cuh"

namespace lazy::ops::cuda::learning {

// Returns the dynamic shared memory of the block.
__device__ inline float* shared_memory() {
  extern __shared__ __align__(128) float memory[];
  return own_memory(memory);
}

namespace spread {

constexpr int kBlocks = 4, kHidden = kBlocks * kDim;
constexpr int kT = 64, kWarps = 16, kThreads = 32 * kWarps;
constexpr int kOwned = kT / kBlocks;  // number of tokens for which a block adds the partial sums of all blocks
static_assert(kOwned == kWarps);      // each warp adds the partial sums of one of these tokens

// kRow: row stride of an fp32 tile. With this stride, the lanes of a quarter-warp that read pairs of elements in four
// rows access different banks.
constexpr int kRow = kDim + 8, kTile = kDim * kRow;
constexpr int kMaxSharedBytes = 227 << 10;  // maximum shared memory of a kernel

using Tile = Share<kWarps, kT, kDim>;

// Tiles of fp16 numbers. fp16 has the same precision as TF32. One ldmatrix instruction loads the elements of an operand
// that a lane needs, and fp16 products are twice as fast. However, fp16 does not have the range of TF32, and some
// operands are unbounded: the inner-loss gradients (the norm divides by a standard deviation that may be close to
// zero), the outer gradients and the state. Therefore every operand has a unit, a power of two by which its elements
// are divided, so that the largest absolute value (or a bound of it) becomes 2^14 to 2^15. Then no element overflows,
// and the rounding error of small values is less than 2^-39 of the largest value. Keys and queries have a length of at
// most 1 and need no unit.
using Half = __half;
// Row stride of an fp16 tile. With this stride, the elements of a column in eight consecutive rows are in eight
// different banks.
constexpr int kHalfRow = kDim + 8, kHalfTile = kDim * kHalfRow;

// The inner product of a key or query with a vector of 64 elements is at most kLongest times the largest absolute
// element of the vector.
constexpr float kLongest = kDim;

// Returns the unit (the power of two by which the elements of an fp16 operand are divided). `most` contains the bits of
// the largest absolute value of the elements, an fp32 number. Elements that are not finite remain so.
__device__ inline float unit_of(uint32_t most) { return __uint_as_float((max(most >> 23, 15u) - 14) << 23); }
// Returns the reciprocal of a power of two.
__device__ inline float inverse(float unit) { return __uint_as_float((254u << 23) - bits(unit)); }
// Returns the unit (power-of-two scale) of a row. Every lane of the warp has two elements of the row.
__device__ inline float row_unit(float2 x) { return unit_of(warp_max(bits(fmaxf(fabsf(x.x), fabsf(x.y))))); }

// The units (power-of-two scales) of the operands of a block. First, each warp proposes the largest absolute value of
// its part of an operand. After a block barrier, settle() computes the unit from the proposals; every thread may call
// it and then write its part of the operand. After one more barrier, of() returns the unit. Only the first kPlaces
// operands have memory for proposals; the units of the other operands are computed in a different way.
struct Units {
  static constexpr int kPlaces = 12;
  float *most, *all;  // arrays in shared memory: `most` (kPlaces, kWarps), `all` (number of operands)

  __device__ explicit Units(float* at) : most(at), all(at + kPlaces * kWarps) {}
  static constexpr int numbers(int factors) { return kPlaces * kWarps + factors; }
  __device__ float* given(int which) const { return most + which * kWarps; }

  __device__ void propose(int which, float largest) const {
    const uint32_t x = warp_max(bits(largest));
    if (lane() == 0) given(which)[warp()] = __uint_as_float(x);
  }
  // Computes the unit of operand `which` and returns the reciprocal of the unit.
  __device__ float settle(int which) const {
    const float unit = unit_of(warp_max(bits(given(which)[lane() % kWarps])));
    if (thread() == 0) all[which] = unit;
    return inverse(unit);
  }
  __device__ float of(int which) const { return all[which]; }
  __device__ float of(int left, int right) const { return all[left] * all[right]; }
  // Returns the unit for the result of a matrix product that is multiplied by at most 2 and then converted to fp16. The
  // elements of the operands are at most 2^15 times their units, so the results are at most 2 * 64 * 2^30 = 2^37 times
  // the product of the two units. Divided by the returned unit, they are at most 2^15.
  __device__ float of_product(int left, int right) const { return fmaxf(of(left, right) * 0x1p22f, 0x1p-100f); }
};

__device__ inline float largest(float most, const float4& x) {
  return fmaxf(fmaxf(fmaxf(most, fabsf(x.x)), fabsf(x.y)), fmaxf(fabsf(x.z), fabsf(x.w)));
}
__device__ inline float largest(const Tile& share) {
  float most = 0;
#pragma unroll
  for (int n = 0; n < Tile::kTiles; ++n) {
#pragma unroll
    for (int e = 0; e < 4; ++e) most = fmaxf(most, fabsf(share.c[n][e]));
  }
  return most;
}

__device__ inline void set_halves(Half* at, float x, float y) {
  *reinterpret_cast<uint32_t*>(at) = tensor_core::pack<Half>(x, y);
}
__device__ inline void set_halves(Half* at, const float4& x, float by) {
  *reinterpret_cast<uint2*>(at) =
      make_uint2(tensor_core::pack<Half>(by * x.x, by * x.y), tensor_core::pack<Half>(by * x.z, by * x.w));
}

__device__ inline float2 halves(const Half* at) {
  return tensor_core::unpack<Half>(*reinterpret_cast<const uint32_t*>(at));
}
__device__ inline float4 four_halves(const Half* at) {
  const auto four = *reinterpret_cast<const uint2*>(at);
  const float2 a = tensor_core::unpack<Half>(four.x), b = tensor_core::unpack<Half>(four.y);
  return make_float4(a.x, a.y, b.x, b.y);
}

// The elements of an operand that a lane holds for one step of 16 inner indices. They belong to the 16 rows of the warp
// (left operand) or to the columns of the warp (right operand).
struct Fragment {
  uint32_t x[4];
};
// Loads the fragments of an operand from an fp16 tile in shared memory. The results of the products are Tiles. LEFT:
// left operand, otherwise right operand. INNER_ROWS: the inner index of the product is the row of the tile, otherwise
// the column. The object stores a shared memory address as an integer, because nvcc 13.0 would generate reads of local
// memory for a pointer.
template <bool LEFT, bool INNER_ROWS>
struct Factor {
  uint32_t at;
  __device__ explicit Factor(const Half* tile) {
    static_assert(Tile::kColumns == 16);
    // Order of the four 8 x 8 matrices that ldmatrix loads: whether the second matrix is to the right of the first one
    // (true) or below it (false).
    constexpr bool kPairs = LEFT == INNER_ROWS;
    const int outer = LEFT ? Tile::row() : Tile::group() * Tile::kColumns;
    const int row = kPairs ? lane() / 16 * 8 + lane() % 8 : lane() % 16,
              column = (kPairs ? lane() / 8 % 2 : lane() / 16) * 8;
    at = tensor_core::shared_address(tile + (INNER_ROWS ? row : outer + row) * kHalfRow +
                                     (INNER_ROWS ? outer + column : column));
  }
  __device__ Fragment operator()(int step) const {
    Fragment f;
    if constexpr (INNER_ROWS) {
      tensor_core::load_matrices_transposed(f.x, at + static_cast<uint32_t>(step * 16 * kHalfRow * sizeof(Half)));
    } else {
      tensor_core::load_matrices(f.x, at + static_cast<uint32_t>(step * 16 * sizeof(Half)));
    }
    return f;
  }
};
using Left = Factor<true, false>;
using LeftAcross = Factor<true, true>;
using Right = Factor<false, true>;
using RightAcross = Factor<false, false>;
// Multiplies the elements of a left operand that have inner index k by by[k]. The operand has the 16 inner indices of
// `step`.
__device__ inline Fragment scaled(const Fragment& f, const Half* by, int step) {
  const auto* const at = reinterpret_cast<const uint32_t*>(by + 16 * step + lane() % 4 * 2);
  const uint32_t a = at[0], b = at[4];
  return {
      {multiply_halves(f.x[0], a), multiply_halves(f.x[1], a), multiply_halves(f.x[2], b), multiply_halves(f.x[3], b)}};
}
__device__ inline void add_product(Tile& to, const Fragment& left, const Fragment& right) {
#pragma unroll
  for (int n = 0; n < Tile::kTiles; ++n) tensor_core::mma<Half>(to.c[n], left.x, right.x[2 * n], right.x[2 * n + 1]);
}
// Calls function(step) for all steps over the inner indices; a step has 16 inner indices.
template <int UNROLLED, typename Function>
__device__ void each_step(const Function& function) {
#pragma unroll UNROLLED
  for (int step = 0; step < kDim / 16; ++step) function(step);
}
// Computes the matrix product to += left * right. The second function computes a += left * by_a and b += left * by_b,
// and loads the left operand only once.
template <int UNROLLED, typename L, typename R>
__device__ void multiply(Tile& to, const L& left, const R& right) {
  each_step<UNROLLED>([&](int step) { add_product(to, left(step), right(step)); });
}
template <int UNROLLED, typename L, typename R>
__device__ void multiply(Tile& a, Tile& b, const L& left, const R& by_a, const R& by_b) {
  each_step<UNROLLED>([&](int step) {
    const Fragment x = left(step);
    add_product(a, x, by_a(step));
    add_product(b, x, by_b(step));
  });
}
// Adds the matrix product left * right to `a` and to `b`, with different factors. For `a`, the elements of the left
// operand with inner index k are multiplied by of_a[k]; for `b`, they are multiplied by of_b[k].
template <int UNROLLED>
__device__ void multiply_scaled(Tile& a, Tile& b, const LeftAcross& left, const Right& right, const Half* of_a,
                                const Half* of_b) {
  each_step<UNROLLED>([&](int step) {
    const Fragment x = left(step), y = right(step);
    add_product(a, scaled(x, of_a, step), y);
    add_product(b, scaled(x, of_b, step), y);
  });
}
__device__ inline void write_halves(Tile& share, Half* to, float by = 1) {
  share.each([&](int i, int j, float& a, float& b) { set_halves(to + i * kHalfRow + j, by * a, by * b); });
}
__device__ inline void scale(Tile& share, float by) {
  elements(share, [&](float& a, int, int) { a *= by; });
}
__device__ inline void add_scaled(Tile& to, float by, const Tile& x) {
  elements(to, [&](float& a, int m, int e) { a += by * x.c[m][e]; });
}
// Returns one of four per-token tensors, selected by the index of the warp.
__device__ inline const float* one_of_four(const float* a, const float* b, const float* c, const float* d) {
  const int which = warp();
  return which == 0 ? a : which == 1 ? b : which == 2 ? c : d;
}
// Stores a row of factors by which operands are multiplied. The factors are divided by a power of two, so that they are
// at most 1; `unit` receives this power of two. Must be called by one warp, each lane of which has two elements.
__device__ inline void set_row(Half* to, float2 x, float& unit) {
  constexpr float kOne = 1 << 15;
  const float of_row = row_unit(x), by = inverse(of_row) / kOne;
  set_halves(to + 2 * lane(), by * x.x, by * x.y);
  if (lane() == 0) unit = kOne * of_row;
}
// Computes to += unit() * left * right. unit() is called after the product, so that the unit does not occupy a register
// during the product.
template <int UNROLLED, typename L, typename R, typename Unit>
__device__ void add_multiple(Tile& to, const L& left, const R& right, const Unit& unit) {
  Tile by;
  multiply<UNROLLED>(by, left, right);
  add_scaled(to, unit(), by);
}
// Writes a row, with a separate unit (power-of-two scale) for the row, to the same tile of every block of the cluster.
// Must be called by one warp, each lane of which has two elements.
__device__ inline void write_row(Half* tile, float* row_units, int row, float2 x) {
  const float unit = row_unit(x), by = inverse(unit);
#pragma unroll
  for (int block = 0; block < kBlocks; ++block) {
    set_halves(of_block(tile + row * kHalfRow + 2 * lane(), block), by * x.x, by * x.y);
    if (lane() == 0) *of_block(row_units + row, block) = unit;
  }
}
// Converts the rows of a tile that write_row wrote with separate units to one common unit. Every thread converts a
// part.
__device__ inline void level_rows(Half* tile, const float* row_units, const Units& units, int which) {
  const float2 two = pair(row_units + 2 * lane());
  const float unit = __uint_as_float(warp_max(max(bits(two.x), bits(two.y))));
  if (thread() == 0) units.all[which] = unit;
  const int row = thread() / (kDim / 8);
  const float by = row_units[row] * inverse(unit);
  auto& eight = *reinterpret_cast<uint4*>(tile + row * kHalfRow + thread() % (kDim / 8) * 8);
  const auto level = [&](uint32_t x) {
    const float2 numbers = tensor_core::unpack<Half>(x);
    return tensor_core::pack<Half>(by * numbers.x, by * numbers.y);
  };
  eight = make_uint4(level(eight.x), level(eight.y), level(eight.z), level(eight.w));
}

// Density and cumulative distribution of the normal distribution at z, from which GELU and its derivatives are
// computed. The approximation of erf has an error of 2e-7 (Abramowitz and Stegun, 7.1.26). The exponential in it also
// yields the density.
struct Normal {
  float z, cumulative, density;
  __device__ explicit Normal(float x) : z(x) {
    const float bell = tensor_core::exp2_fast(-0.7213475204444817f * z * z);  // e^(-z^2 / 2)
    const float t = reciprocal(1 + 0.23164189f * fabsf(z));
    const float tail =
        t * (0.127414796f + t * (-0.142248368f + t * (0.7107068705f + t * (-0.7265760135f + t * 0.5307027145f)))) *
        bell;
    cumulative = z < 0 ? tail : 1 - tail;
    density = 0.3989422804014327f * bell;
  }
  __device__ float value() const { return z * cumulative; }
  __device__ float slope() const { return cumulative + z * density; }
  __device__ float bend() const { return (2 - z * z) * density; }
};
// The slopes (derivatives) of the activation for a thread's elements, packed as fp16 to use half of the registers.
struct Slopes {
  uint32_t pairs[Tile::kTiles][2];
  __device__ float operator()(int n, int e) const {
    const float2 both = tensor_core::unpack<Half>(pairs[n][e / 2]);
    return e % 2 == 0 ? both.x : both.y;
  }
};
// Applies the activation to the thread's elements and returns the slopes of the activation.
__device__ inline Slopes activate(Tile& share) {
  Slopes slopes;
#pragma unroll
  for (int n = 0; n < Tile::kTiles; ++n) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      float &x = share.c[n][2 * half], &y = share.c[n][2 * half + 1];
      const Normal a(x), b(y);
      x = a.value(), y = b.value();
      slopes.pairs[n][half] = tensor_core::pack<Half>(a.slope(), b.slope());
    }
  }
  return slopes;
}

// Calls function(row, column, x, y) for every pair of adjacent elements, where x belongs to `a` and y to `b`.
template <typename Function>
__device__ void each_of_two(Tile& a, Tile& b, const Function& function) {
#pragma unroll
  for (int n = 0; n < Tile::kTiles; ++n) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      function(Tile::row() + 8 * half + lane() / 4, Tile::group() * Tile::kColumns + 8 * n + lane() % 4 * 2,
               make_float2(a.c[n][2 * half], a.c[n][2 * half + 1]),
               make_float2(b.c[n][2 * half], b.c[n][2 * half + 1]));
    }
  }
}

// Returns the sum, over all blocks of the cluster, of the two values at `own` in their shared memory.
__device__ inline float2 sum_of_blocks(float* own) {
  float2 sum = pair(of_block(own, 0));
#pragma unroll
  for (int rank = 1; rank < kBlocks; ++rank) {
    const float2 x = pair(of_block(own, rank));
    sum.x += x.x, sum.y += x.y;
  }
  return sum;
}

// Starts the asynchronous copy of a tile of 64 rows.
__device__ inline void fetch_tile(float* tile, const float* from, int step) {
  fetch<kDim, kThreads, kDim, kRow>(tile, from, step);
}
// Each of the tensors `all` has one 64 x 64 matrix per chunk. Prefetches this block's quarter of these matrices, for
// the chunk with the given index, to the L2 cache.
template <typename... Tensors>
__device__ void prefetch_part(int64_t index, int rank, Tensors*... all) {
  constexpr int kLine = 32;
  static_assert(kT * kDim == kBlocks * kLine * 32 && sizeof...(all) <= kWarps);
  int which = 0;
  ((warp() == which++ ? prefetch(all + index * kT * kDim + (rank * 32 + lane()) * kLine) : void()), ...);
}
// The part of a 64 x 64 matrix that a thread copies consists of kFetched vectors of four floats.
constexpr int kFetched = kDim * kDim / 4 / kThreads;
// Calls function(row, column) for each of the kFetched vectors of this thread.
template <typename Function>
__device__ void each_fetched(const Function& function) {
#pragma unroll
  for (int m = 0; m < kFetched; ++m) {
    const int place = thread() + m * kThreads;
    function(place / (kDim / 4), place % (kDim / 4) * 4);
  }
}
__device__ inline float4& four(float* at) { return *reinterpret_cast<float4*>(at); }
// Loads the thread's part of a contiguous matrix from global memory to registers. set_part stores the part to a tile.
__device__ inline void read_part(float4 (&to)[kFetched], const float* from) {
#pragma unroll
  for (int m = 0; m < kFetched; ++m) {
    to[m] = *reinterpret_cast<const float4*>(from + 4 * (thread() + m * kThreads));
  }
}
__device__ inline float largest(const float4 (&part)[kFetched]) {
  float most = 0;
#pragma unroll
  for (const float4& x : part) most = largest(most, x);
  return most;
}
__device__ inline void set_part(Half* tile, const float4 (&from)[kFetched], float by = 1) {
#pragma unroll
  for (int m = 0; m < kFetched; ++m) {
    const int place = thread() + m * kThreads;
    set_halves(tile + place / (kDim / 4) * kHalfRow + place % (kDim / 4) * 4, from[m], by);
  }
}
__device__ inline float dot_four(const float4& a, const float4& b) {
  return a.x * b.x + a.y * b.y + a.z * b.z + a.w * b.w;
}
// The following three functions process the four fp32 tiles of the state (or of the gradients of the state), which are
// contiguous in shared memory. each_of_state calls function(tile, row, column, x) for each of the thread's vectors x.
// propose_state proposes the largest absolute value of each tile. set_state converts the tiles to fp16 operands. The
// units of the four tiles have consecutive indices, starting at `which`.
template <typename Function>
__device__ void each_of_state(float* tiles, const Function& function) {
  each_fetched([&](int row, int column) {
#pragma unroll
    for (int tile = 0; tile < 4; ++tile) function(tile, row, column, four(tiles + tile * kTile + row * kRow + column));
  });
}
__device__ inline void propose_state(float* tiles, const Units& units, int which) {
  float most[4] = {};
  each_of_state(tiles, [&](int tile, int, int, const float4& x) { most[tile] = largest(most[tile], x); });
#pragma unroll
  for (int tile = 0; tile < 4; ++tile) units.propose(which + tile, most[tile]);
}
__device__ inline void set_state(Half* factors, float* tiles, const Units& units, int which) {
  float by[4];
#pragma unroll
  for (int tile = 0; tile < 4; ++tile) by[tile] = units.settle(which + tile);
  each_of_state(tiles, [&](int tile, int row, int column, const float4& x) {
    set_halves(factors + tile * kHalfTile + row * kHalfRow + column, x, by[tile]);
  });
}

// Data that the forward pass saves for the backward pass, per chunk and per block of a cluster. It is in the fp16 form
// in which the forward pass used it.
struct Kept {
  enum { kFirstW, kFirstS, kLastW, kLastS, kZ, kX, kT, kUnits, kRoom = 32 };
  // State at the start of the chunk: W and S of the first layer, W and S of the last layer.
  Half state[4 * kHalfTile];
  uint4 z[kThreads], t[kThreads], x[kThreads];  // each thread's elements of z, t and x (see fast_weights.cuh)
  float units[kRoom];
};
static_assert(sizeof(Kept) % 128 == 0);  // a multiple of the size of an L2 cache line
__device__ inline Kept& kept_of(const FastWeightsProblem& p, int64_t index, int rank) {
  return static_cast<Kept*>(p.kept)[index * kBlocks + rank];
}
// narrowed() multiplies the elements of a tile that a thread holds by `by` and packs them as fp16, the form in which
// they are saved. widen() converts them back and multiplies them by `unit`.
__device__ inline uint4 narrowed(const Tile& share, float by = 1) {
  const auto two = [&](int n, int e) { return tensor_core::pack<Half>(by * share.c[n][e], by * share.c[n][e + 1]); };
  static_assert(Tile::kTiles == 2);
  return make_uint4(two(0, 0), two(0, 2), two(1, 0), two(1, 2));
}
__device__ inline void widen(Tile& share, const uint4& from, float unit) {
  const uint32_t pairs[Tile::kTiles][2] = {{from.x, from.y}, {from.z, from.w}};
  elements(share, [&](float& a, int n, int e) {
    const float2 two = tensor_core::unpack<Half>(pairs[n][e / 2]);
    a = unit * (e % 2 == 0 ? two.x : two.y);
  });
}
// Starts the asynchronous copy of a tile of fp16 operands.
__device__ inline void fetch_factors(Half* tile, const Half* from) {
  static_assert(kDim * kDim / 8 == kThreads);
  const int at = thread() / (kDim / 8) * kHalfRow + thread() % (kDim / 8) * 8;
  tensor_core::copy_async(tensor_core::shared_address(tile + at), from + at, true);
}

// Whether the cluster kernels support the problem on the current GPU. `kernel` is one of these kernels; it must have
// been compiled for sm_90 or later.
template <typename Kernel>
bool serves(const FastWeightsProblem& p, Kernel kernel) {
  if (!p.momentum || p.tanh || p.T != kT || p.H != kHidden || kMaxSharedBytes > most_shared_memory("fast_weights"))
    return false;
  cudaFuncAttributes attributes;
  check(cudaFuncGetAttributes(&attributes, kernel), "fast_weights");
  return attributes.ptxVersion >= 90;
}

}  // namespace spread
}  // namespace lazy::ops::cuda::learning
