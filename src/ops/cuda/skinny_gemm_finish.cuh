// Shared code of the tiled skinny GEMM kernels: the mapping of rows of W to tiles, and the epilogue that writes the
// products to y or to KV-cache pages.
#pragma once
#include "ops/cuda/skinny_gemm.cuh"
#include "ops/cuda/step_ptx.cuh"

namespace lazy::ops::cuda::step {

inline unsigned ceil_div(int64_t x, int64_t by) { return static_cast<unsigned>((x + by - 1) / by); }

// Number of columns of y that a tile of `rows_of_w` rows of W yields. If a result is computed from two products, the
// tile alternates between 16 rows of W for first products and 16 rows of W for second products.
constexpr int columns_of_tile(Mode mode, int rows_of_w) { return mode == Mode::plain ? rows_of_w : rows_of_w / 2; }

// Returns the index in W of row r of a tile. Rows that correspond to columns beyond the last column of y repeat the row
// of the last column; their products are not stored.
template <Mode MODE>
__device__ int row_in_tile(const SkinnyGemm& p, int first_column, int r) {
  constexpr bool kPlain = MODE == Mode::plain;
  const int column = first_column + (kPlain ? r : r / 32 * 16 + r % 16);
  return row_of<MODE>(p, min(column, static_cast<int>(p.out) - 1), kPlain ? 0 : r / 16 % 2);
}

// Four adjacent columns of a row of y. One thread runs the epilogue for a quad at a time.
struct Quad {
  int row, column;  // position in y
  int m, r;         // row of x and first row of W, as indices in the tile
  bool there;
};
// Returns the n-th group of four columns of a tile of ROWS_W rows of W and ROWS_X rows of x.
template <Mode MODE, int ROWS_W, int ROWS_X>
__device__ Quad quad_of(const SkinnyGemm& p, int n, int first_row, int first_column) {
  constexpr int kQuads = columns_of_tile(MODE, ROWS_W) / 4;  // number of quads per row of the tile
  const int m = n / kQuads, column = n % kQuads * 4;
  Quad quad{first_row + m, first_column + column, m, MODE == Mode::plain ? column : column / 16 * 32 + column % 16};
  quad.there = n < kQuads * ROWS_X && quad.row < p.rows && quad.column < p.out;
  return quad;
}

// Inputs of the epilogue for four columns of y, in addition to the products. They can be loaded before the products are
// known.
struct Beside {
  TokenSlot place;   // used only with Mode::pages
  Angles<4> angles;  // used only with Mode::pages
  uint2 add;         // used only with Mode::plain
};
// Loads four adjacent elements of `add`. The loads bypass the read-only cache, because the previous kernel may have
// written them.
__device__ inline uint2 residual(const SkinnyGemm& p, const Quad& quad) {
  if (!p.add) return {};
  const auto* const from = static_cast<const uint16_t*>(p.add) + quad.row * p.out + quad.column;
  if (p.out % 4 == 0) return __ldcg(reinterpret_cast<const uint2*>(from));
  const auto number = [&](int i) { return quad.column + i < p.out ? uint32_t{__ldcg(from + i)} : 0; };
  return {number(0) | number(1) << 16, number(2) | number(3) << 16};
}

// Runs the epilogue for four columns of y. product(r) returns the four products with rows r to r + 3 of W in the tile.
template <typename T, Mode MODE, typename Product>
__device__ void finish(const SkinnyGemm& p, const Quad& quad, const Beside& beside, const Product& product) {
  if constexpr (MODE == Mode::pages) {
    const float4 x = product(quad.r), y = product(quad.r + 16);
    store_pairs<T, 4>(p.pages, quad.row, pair_of(p.pages, quad.column), beside.place, beside.angles,
                      {x.x, x.y, x.z, x.w}, {y.x, y.y, y.z, y.w});
    return;
  }
  float4 y = product(quad.r);
  if constexpr (MODE == Mode::swiglu) {
    const float4 up = product(quad.r + 16);
    y = {swiglu<T>(y.x, up.x), swiglu<T>(y.y, up.y), swiglu<T>(y.z, up.z), swiglu<T>(y.w, up.w)};
  }
  if (MODE == Mode::plain && p.add) {
    const float2 a = kernels::cuda::unpack<T>(beside.add.x), b = kernels::cuda::unpack<T>(beside.add.y);
    y = {rounded<T>(y.x) + a.x, rounded<T>(y.y) + a.y, rounded<T>(y.z) + b.x, rounded<T>(y.w) + b.y};
  }
  const int64_t to = quad.row * p.out + quad.column;
  if (p.wide) {
    auto* const result = static_cast<float*>(p.y) + to;
    if (p.out % 4 == 0) {
      *reinterpret_cast<float4*>(result) = y;
    } else {
      const float one[4] = {y.x, y.y, y.z, y.w};
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        if (quad.column + i < p.out) result[i] = one[i];
      }
    }
  } else {
    const uint2 both{kernels::cuda::pack<T>(y.x, y.y), kernels::cuda::pack<T>(y.z, y.w)};
    auto* const result = static_cast<uint16_t*>(p.y) + to;
    if (p.out % 4 == 0) {
      *reinterpret_cast<uint2*>(result) = both;
    } else {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        if (quad.column + i < p.out) result[i] = static_cast<uint16_t>((i < 2 ? both.x : both.y) >> i % 2 * 16);
      }
    }
  }
}

__device__ inline float4 operator+(const float4& x, const float4& y) {
  return {x.x + y.x, x.y + y.y, x.z + y.z, x.w + y.w};
}
__device__ inline float4 operator*(const float4& x, float by) { return {x.x * by, x.y * by, x.z * by, x.w * by}; }

// Runs the epilogue for the tile of a block. The threads must have stored their products before as a matrix (rows of x,
// rows of W) with row stride N::kStride. The first THREADS threads of the block take part. scale_of(quad) returns the
// factor by which the products are multiplied.
template <typename T, typename N, Mode MODE, int THREADS = N::kThreads, typename Scale>
__device__ void finish_tile(const SkinnyGemm& p, int first_row, int first_column, const TokenSlot* places,
                            const float* products, const Scale& scale_of) {
  constexpr int kQuads = columns_of_tile(MODE, N::kRowsW) / 4 * N::kRowsX;
  constexpr int kEach = (kQuads + THREADS - 1) / THREADS;
  const auto quad_of = [&](int n) { return step::quad_of<MODE, N::kRowsW, N::kRowsX>(p, n, first_row, first_column); };
  [[maybe_unused]] Angles<4> by[MODE == Mode::pages ? kEach : 1];
  if constexpr (MODE == Mode::pages) {
#pragma unroll
    for (int i = 0; i < kEach; ++i) {
      const Quad quad = quad_of(threadIdx.x + i * THREADS);
      if (quad.there) by[i] = angles_of<4>(p.pages, pair_of(p.pages, quad.column), places[quad.m]);
    }
  }
  THREADS == N::kThreads ? __syncthreads() : named_barrier<THREADS>();
  const auto finish_quad = [&](const Quad& quad, Beside beside) {
    if (!quad.there) return;
    const float scale = scale_of(quad);
    if constexpr (MODE == Mode::plain) beside.add = residual(p, quad);
    finish<T, MODE>(p, quad, beside, [&](int r) {
      return *reinterpret_cast<const float4*>(products + quad.m * N::kStride + r) * scale;
    });
  };
  if constexpr (MODE == Mode::pages) {
#pragma unroll
    for (int i = 0; i < kEach; ++i) {
      const Quad quad = quad_of(threadIdx.x + i * THREADS);
      finish_quad(quad, {.place = places[quad.m], .angles = by[i]});
    }
  } else {
    for (int n = threadIdx.x; n < kQuads; n += THREADS) finish_quad(quad_of(n), {});
  }
}

}  // namespace lazy::ops::cuda::step
