// Shared code of the fast-weights kernels: tiles in shared memory, matrix products of a block, GELU, and sums over
// rows.
//
// A tile has rows of 64 fp32 numbers. Matrices with a larger hidden dimension are processed in slices of 64 hidden
// columns or rows. Data that does not fit in shared memory is stored in global memory and usually read back from the L2
// cache.
//
// Names. k and q are the keys and queries of a chunk. The fast-weights model has one or two layers. It is evaluated
// with input k to compute its update, and with input q to compute the outputs; values "for k" and "for q" belong to
// these two evaluations. For a layer, g is the inner-loss gradient: the gradient of the inner loss with respect to the
// layer's output for k. The overlap of a layer is the matrix of inner products of its inputs for q and its inputs for
// k. `steps` are the factors of the gradient steps (read_steps in ops/fast_weights_problem.h). The elementwise product
// overlap * steps, multiplied by g, is the effect of the updates within the chunk on the outputs of the layer. With two
// layers, z and x are the first layer's outputs for k and for q, u is the last layer's input for k, and t is the
// gradient of the inner loss with respect to u. ops/fast_weights_problem.h defines the shapes.
#pragma once
#include "attention/cuda/mma.cuh"
#include "ops/cuda/fast_weights.h"
#include "ops/cuda/fast_weights_ptx.cuh"
#include "ops/cuda/launch.h"

namespace lazy::ops::cuda::learning {

namespace tensor_core = lazy::kernels::cuda;

constexpr int kDim = 64;
// Row stride of a tile in floats. With this value, the lanes of a warp that load an mma fragment access different
// banks.
constexpr int kStep = kDim + 4;
constexpr int kWeights = kDim * kStep;
template <int T>
constexpr int kTokens = T* kStep;

// Index of the calling thread's warp in the block, and index of the thread in its warp. The divisions use unsigned
// numbers, because they then need fewer instructions than with signed numbers.
__device__ inline int warp() { return static_cast<int>(static_cast<unsigned>(thread()) / 32); }
__device__ inline int lane() { return static_cast<int>(static_cast<unsigned>(thread()) % 32); }

// Starts the asynchronous copy of ROWS rows of COLUMNS floats from global memory to a tile. The row stride is `step`
// floats in global memory and STEP floats in the tile.
template <int ROWS, int THREADS, int COLUMNS = kDim, int STEP = kStep>
__device__ void fetch(float* tile, const float* from, int step) {
  constexpr unsigned kPieces = ROWS * COLUMNS / 4;
#pragma unroll
  for (unsigned first = 0; first < kPieces; first += THREADS) {
    const unsigned n = first + static_cast<unsigned>(thread());
    if (first + THREADS > kPieces && n >= kPieces) break;
    const int row = static_cast<int>(n / (COLUMNS / 4)), column = static_cast<int>(n % (COLUMNS / 4) * 4);
    tensor_core::copy_async(tensor_core::shared_address(tile + row * STEP + column), from + row * step + column, true);
  }
}
// Writes ROWS rows of COLUMNS floats from a tile with row stride STEP to contiguous global memory.
template <int ROWS, int THREADS, int COLUMNS, int STEP>
__device__ void store(float* to, const float* tile) {
#pragma unroll 4
  for (int n = threadIdx.x; n < ROWS * COLUMNS / 4; n += THREADS) {
    const int row = n / (COLUMNS / 4), column = n % (COLUMNS / 4) * 4;
    *reinterpret_cast<float4*>(to + 4 * n) = *reinterpret_cast<const float4*>(tile + row * STEP + column);
  }
}
// Waits until all asynchronous copies of the block are complete. Contains a block barrier.
__device__ inline void arrive() {
  tensor_core::copies_commit();
  tensor_core::copies_wait<0>();
  __syncthreads();
}

// Operands of a matrix product. operator()(i, j) returns element (i, j) of a tile (`Rows`) or of its transpose
// (`Columns`). STEP is the row stride of the tile in floats. The `Scaled` variants multiply row r of the tile by
// factor[r].
template <int STEP>
struct RowsOf {
  const float* tile;
  __device__ float operator()(int i, int j) const { return tile[i * STEP + j]; }
};
template <int STEP>
struct ColumnsOf {
  const float* tile;
  __device__ float operator()(int i, int j) const { return tile[j * STEP + i]; }
};
struct ScaledRows {
  const float *tile, *factor;
  __device__ float operator()(int i, int j) const { return factor[i] * tile[i * kStep + j]; }
};
template <int STEP>
struct ScaledColumnsOf {
  const float *tile, *factor;
  __device__ float operator()(int i, int j) const { return factor[j] * tile[j * STEP + i]; }
};
using Rows = RowsOf<kStep>;
using Columns = ColumnsOf<kStep>;
using ScaledColumns = ScaledColumnsOf<kStep>;
template <typename Factor>
struct Negative {
  Factor factor;
  __device__ float operator()(int i, int j) const { return -factor(i, j); }
};
template <typename Factor>
__device__ Negative<Factor> minus(const Factor& factor) {
  return {factor};
}
// `Rounded` is an operand whose elements were already rounded to TF32 when they were stored. It returns the bits of an
// element as an integer, and tf32() of an integer does not round again.
using ops::cuda::tf32;
__device__ inline uint32_t tf32(uint32_t x) { return x; }
__device__ inline uint32_t bits(float x) { return __float_as_uint(x); }
__device__ inline uint2 bits(float2 x) { return make_uint2(bits(x.x), bits(x.y)); }
template <typename Factor>
struct Rounded {
  Factor factor;
  __device__ auto operator()(int i, int j) const { return bits(factor(i, j)); }
};
template <typename Factor>
__device__ Rounded<Factor> rounded(const Factor& factor) {
  return {factor};
}

// The part of an M x N accumulator matrix that a warp holds in registers: 16 rows and kTiles * 8 columns. With PARTS >
// 1, the warps form PARTS groups. Each group then computes a partial sum of the whole matrix, and the caller must add
// the partial sums.
template <int WARPS, int M, int N, int PARTS = 1>
struct Share {
  static constexpr int kRowGroups = M / 16, kColumnGroups = WARPS / PARTS / kRowGroups;
  static constexpr int kColumns = N / kColumnGroups < 8 ? 8 : N / kColumnGroups, kTiles = kColumns / 8;
  static_assert(WARPS / PARTS % kRowGroups == 0 && kColumns % 8 == 0);
  float c[kTiles][4] = {};

  __device__ static int row() { return warp() % kRowGroups * 16; }
  __device__ static int group() { return warp() / kRowGroups % kColumnGroups; }
  __device__ static int part() { return warp() / (kRowGroups * kColumnGroups); }
  __device__ static bool idle() { return kColumns * kColumnGroups > N && group() * kColumns >= N; }

  // Calls function(row, column, x, y) for every pair of adjacent elements x and y that this thread holds. (row, column)
  // is the position of x in the M x N matrix.
  template <typename Function>
  __device__ void each(const Function& function) {
    if (idle()) return;
#pragma unroll
    for (int n = 0; n < kTiles; ++n) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        function(row() + 8 * half + lane() / 4, group() * kColumns + 8 * n + lane() % 4 * 2, c[n][2 * half],
                 c[n][2 * half + 1]);
      }
    }
  }

  // Adds `by` * (sum of function(row, column, x, y) over the columns that the warp holds) to sums[group][row]. `sums`
  // has the shape (kColumnGroups, M).
  template <typename Function>
  __device__ void add_rows(float* sums, const Function& function, float by = 1) {
    if (idle()) return;
    float sum[2] = {};
#pragma unroll
    for (int n = 0; n < kTiles; ++n) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        sum[half] += function(row() + 8 * half + lane() / 4, group() * kColumns + 8 * n + lane() % 4 * 2,
                              c[n][2 * half], c[n][2 * half + 1]);
      }
    }
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      sum[half] += __shfl_xor_sync(~0u, sum[half], 1);
      sum[half] += __shfl_xor_sync(~0u, sum[half], 2);
      if (lane() % 4 == 0) sums[group() * M + row() + 8 * half + lane() / 4] += by * sum[half];
    }
  }
};

// Computes the matrix product to += left * right with an inner dimension of K. left(row, k) and right(k, column) must
// return the elements.
template <int K, int WARPS, int M, int N, int PARTS, typename Left, typename Right>
__device__ void product(Share<WARPS, M, N, PARTS>& to, const Left& left, const Right& right) {
  using To = Share<WARPS, M, N, PARTS>;
  if (To::idle()) return;
  const int i = lane() / 4, j = lane() % 4, row = To::row() + i, column = To::group() * To::kColumns + i;
#pragma unroll 2
  for (int k = j; k < K; k += 8) {
    const uint32_t x[4] = {tf32(left(row, k)), tf32(left(row + 8, k)), tf32(left(row, k + 4)),
                           tf32(left(row + 8, k + 4))};
#pragma unroll
    for (int n = 0; n < To::kTiles; ++n) {
      mma_tf32(to.c[n], x, tf32(right(k, column + 8 * n)), tf32(right(k + 4, column + 8 * n)));
    }
  }
}

__device__ inline float2 pair(const float* at) { return *reinterpret_cast<const float2*>(at); }
__device__ inline void set_pair(float* at, float x, float y) { *reinterpret_cast<float2*>(at) = make_float2(x, y); }
// Returns x and y rounded to TF32, for use as operands of later products.
__device__ inline float2 rounded_pair(float x, float y) {
  return make_float2(__uint_as_float(tf32(x)), __uint_as_float(tf32(y)));
}
__device__ inline void set_rounded_pair(float* at, float x, float y) {
  *reinterpret_cast<float2*>(at) = rounded_pair(x, y);
}

// Calls function(c, n, e) for every element c of a Share that this thread holds; c is the thread's element e of the
// n-th tile of 16 x 8 elements. row_of(e) is the row of the element within the 16 rows of the warp.
template <typename To, typename Function>
__device__ void elements(To& to, const Function& function) {
#pragma unroll
  for (int n = 0; n < To::kTiles; ++n) {
#pragma unroll
    for (int e = 0; e < 4; ++e) function(to.c[n][e], n, e);
  }
}
__device__ inline int row_of(int e) { return e / 2 * 8 + lane() / 4; }

template <typename To>
__device__ void read(To& to, const float* from, int step) {
  to.each([&](int i, int j, float& a, float& b) {
    const float2 x = pair(from + i * step + j);
    a = x.x, b = x.y;
  });
}
template <typename To>
__device__ void write(To& share, float* to, int step) {
  share.each([&](int i, int j, float& a, float& b) { set_pair(to + i * step + j, a, b); });
}
// Rounds the elements of a Share to TF32 and stores them. Later products use them as an operand.
template <typename To>
__device__ void write_rounded(To& share, float* to, int step) {
  share.each([&](int i, int j, float& a, float& b) { set_rounded_pair(to + i * step + j, a, b); });
}
template <typename To>
__device__ void add_to(To& share, float* to, int step) {
  share.each([&](int i, int j, float& a, float& b) {
    const float2 before = pair(to + i * step + j);
    set_pair(to + i * step + j, before.x + a, before.y + b);
  });
}

// Operands that return the elements of two adjacent inner indices in one call. If the elements are adjacent in memory,
// this needs only one load.
template <int STEP>
struct PairsOf {
  const float* tile;
  __device__ float2 operator()(int i, int k) const { return pair(tile + i * STEP + k); }
};
// Right operands of pair_product with a result of type To. In step `step`, a product processes the inner indices 8 *
// step to 8 * step + 7. operator()(step, n) returns the two elements that this lane needs in this step for the n-th
// group of eight columns of its warp. The inner index is the column of the tile (PairColumns) or the row of the tile
// (PairRows).
template <typename To, int STEP>
struct PairColumns {
  const float* at;
  __device__ explicit PairColumns(const float* tile)
      : at(tile + (To::group() * To::kColumns + lane() / 4) * STEP + lane() % 4 * 2) {}
  __device__ float2 operator()(int step, int n) const { return pair(at + 8 * n * STEP + 8 * step); }
};
template <typename To, int STEP>
struct PairRows {
  const float* at;
  __device__ explicit PairRows(const float* tile)
      : at(tile + lane() % 4 * 2 * STEP + To::group() * To::kColumns + lane() / 4) {}
  __device__ float2 operator()(int step, int n) const {
    return make_float2(at[8 * step * STEP + 8 * n], at[(8 * step + 1) * STEP + 8 * n]);
  }
};
// A right operand of pair_product that is held in registers. It is loaded from global memory while the block does other
// work.
template <typename To, int K>
struct HeldOperand {
  float2 b[K / 8][To::kTiles];
  template <typename Right>
  __device__ explicit HeldOperand(const Right& right) {
#pragma unroll
    for (int step = 0; step < K / 8; ++step) {
#pragma unroll
      for (int n = 0; n < To::kTiles; ++n) b[step][n] = right(step, n);
    }
  }
  __device__ float2 operator()(int step, int n) const { return b[step][n]; }
  __device__ void round() {
#pragma unroll
    for (int step = 0; step < K / 8; ++step) {
#pragma unroll
      for (auto& x : b[step]) x = make_float2(__uint_as_float(tf32(x.x)), __uint_as_float(tf32(x.y)));
    }
  }
};
template <typename Right>
constexpr bool kInRegisters = false;
template <typename To, int K>
constexpr bool kInRegisters<HeldOperand<To, K>> = true;
template <typename To, int K>
constexpr bool kInRegisters<Rounded<HeldOperand<To, K>>> = true;

// Computes the matrix product to += left * right. The operands return the elements of two adjacent inner indices per
// call (PairsOf, PairColumns, PairRows, HeldOperand).
template <int K, int WARPS, int M, int N, int PARTS, typename Left, typename Right>
__device__ void pair_product(Share<WARPS, M, N, PARTS>& to, const Left& left, const Right& right) {
  using To = Share<WARPS, M, N, PARTS>;
  if (To::idle()) return;
  const int row = To::row() + lane() / 4, j = lane() % 4 * 2;
  constexpr int kUnrolled = kInRegisters<Right> ? K / 8 : 4;
#pragma unroll kUnrolled
  for (int step = 0; step < K / 8; ++step) {
    const auto above = left(row, 8 * step + j), below = left(row + 8, 8 * step + j);
    const uint32_t x[4] = {tf32(above.x), tf32(below.x), tf32(above.y), tf32(below.y)};
#pragma unroll
    for (int n = 0; n < To::kTiles; ++n) {
      const auto y = right(step, n);
      mma_tf32(to.c[n], x, tf32(y.x), tf32(y.y));
    }
  }
}

__device__ inline float warp_sum(float x) {
#pragma unroll
  for (int step = 16; step > 0; step /= 2) x += __shfl_xor_sync(~0u, x, step);
  return x;
}
// row_sum, row_dot and row_mean reduce rows of 64 elements. Every lane of the warp has two elements of each row.
__device__ inline float row_sum(float2 x) { return warp_sum(x.x + x.y); }
__device__ inline float row_dot(float2 x, float2 y) { return warp_sum(x.x * y.x + x.y * y.y); }
__device__ inline float row_mean(float2 x) { return row_sum(x) / kDim; }
template <typename Function>
__device__ float2 both(const Function& function, float2 a) {
  return make_float2(function(a.x), function(a.y));
}

// Returns the sum over the T rows of the tile g of steps[row] * g[row][column]. The column is the index of the calling
// thread. The code loads four steps at a time. If it loaded single steps, nvcc would merge some of the loads, and
// different builds would merge different loads.
template <int T, int STEP>
__device__ float stepped_sum(const float* steps, const float* g) {
  float sum = 0;
#pragma unroll
  for (int t = 0; t < T; t += 4, g += 4 * STEP) {
    const float4 four = *reinterpret_cast<const float4*>(steps + t);
    sum += four.x * g[threadIdx.x];
    sum += four.y * g[STEP + threadIdx.x];
    sum += four.z * g[2 * STEP + threadIdx.x];
    sum += four.w * g[3 * STEP + threadIdx.x];
  }
  return sum;
}

// Returns the sum of column i over the T rows of a tile, where i is the index of the calling thread.
template <int T, int STEP = kStep>
__device__ float column_sum(const float* tile) {
  float sum = 0;
#pragma unroll 2
  for (int row = 0; row < T; ++row) sum += tile[row * STEP + threadIdx.x];
  return sum;
}

struct Gelu {
  static constexpr float kRoot = 0.7978845608028654f, kCube = 0.044715f;  // kRoot is sqrt(2 / pi)
  bool tanh;

  __device__ float value(float z) const {
    if (tanh) return 0.5f * z * (1 + tanhf(kRoot * (z + kCube * z * z * z)));
    return 0.5f * z * (1 + erff(z * 0.7071067811865476f));
  }
  __device__ float slope(float z) const {
    if (tanh) {
      const float t = tanhf(kRoot * (z + kCube * z * z * z));
      return 0.5f * (1 + t) + 0.5f * z * (1 - t * t) * kRoot * (1 + 3 * kCube * z * z);
    }
    return 0.5f * (1 + erff(z * 0.7071067811865476f)) + z * density(z);
  }
  // The second derivative of GELU.
  __device__ float bend(float z) const {
    if (tanh) {
      const float t = tanhf(kRoot * (z + kCube * z * z * z)), s = kRoot * (1 + 3 * kCube * z * z);
      return (1 - t * t) * (s + 3 * kCube * kRoot * z * z - z * t * s * s);
    }
    return (2 - z * z) * density(z);
  }
  __device__ static float density(float z) { return 0.3989422804014327f * expf(-0.5f * z * z); }
};

// LayerNorm of one row of 64 elements, without weight and bias. Each lane of the warp has two elements of the row. n is
// the normalized row, and rstd is the reciprocal of the standard deviation.
struct NormRow {
  float2 n;
  float rstd;

  __device__ explicit NormRow(float2 z) {
    const float mean = row_mean(z);
    n = make_float2(z.x - mean, z.y - mean);
    rstd = 1 / sqrtf(row_dot(n, n) / kDim + 1e-6f);
    n = make_float2(n.x * rstd, n.y * rstd);
  }
  // Backpropagates through the norm. x is the gradient with respect to the normalized row n. Returns the gradient with
  // respect to the norm's input: rstd * (x - mean(x) - n * mean(x * n)).
  __device__ float2 through(float2 x) const {
    const float mean = row_mean(x), along = row_dot(x, n) / kDim;
    return make_float2(rstd * (x.x - mean - n.x * along), rstd * (x.y - mean - n.y * along));
  }
};

// The inner loss of one token: the loss between the output of the fast-weights model for the token's key k and the
// target. Each lane of the warp has two of the 64 elements of a row.
struct InnerLoss {
  bool normalized;
  float2 weight{}, bias{};  // weight and bias of the LayerNorm

  // Loads the weight and bias of the n-th LayerNorm, if the inner loss has a LayerNorm.
  template <typename Problem>
  __device__ InnerLoss(const Problem& p, int64_t n) : normalized(p.norm_weight) {
    if (!normalized) return;
    weight = pair(p.norm_weight + n * kDim + 2 * lane());
    bias = pair(p.norm_bias + n * kDim + 2 * lane());
  }
  // Returns the gradient of the inner loss with respect to the output y of the last layer. Without a norm, y is
  // replaced by the error y - target; this value is saved for the backward pass.
  __device__ float2 gradient(float2& y, float2 target) const {
    if (normalized) {
      const NormRow norm(y);
      return norm.through(make_float2((bias.x - target.x + norm.n.x * weight.x) * weight.x,
                                      (bias.y - target.y + norm.n.y * weight.y) * weight.y));
    }
    y = make_float2(y.x - target.x, y.y - target.y);
    const float factor = 2 * sqrtf(kDim / fmaxf(row_dot(y, y), kDim));
    return make_float2(factor * y.x, factor * y.y);
  }
  // Backpropagates through gradient(). y is the value that gradient() saved, and g is the result of gradient(). d is
  // the gradient of the outer loss with respect to g. Returns the gradient of the outer loss with respect to y, sets
  // d_target, and adds to the gradients of the norm's weight and bias.
  __device__ float2 backward(float2 y, float2 target, float2 g, float2 d, float2& d_target, float2& d_weight,
                             float2& d_bias) const {
    if (!normalized) {
      const float square = row_dot(y, y), longest = fmaxf(square, kDim), factor = 2 * sqrtf(kDim / longest);
      const float dot = row_dot(y, d), along = square > kDim ? dot / longest : 0;
      const float2 d_y = make_float2(factor * (d.x - y.x * along), factor * (d.y - y.y * along));
      d_target = make_float2(-d_y.x, -d_y.y);
      return d_y;
    }
    const NormRow norm(y);
    const auto each = [&](auto number) { return make_float2(number(&float2::x), number(&float2::y)); };
    const float2 scaled = each([&](auto c) { return norm.n.*c * weight.*c; });
    const float2 miss = each([&](auto c) { return bias.*c - target.*c + scaled.*c; });
    const float2 h = each([&](auto c) { return miss.*c * weight.*c; });
    const float2 d_h = norm.through(d);
    const float projection = norm.rstd * row_dot(h, norm.n) / kDim, along = norm.rstd * row_dot(d, norm.n) / kDim,
                length = norm.rstd * row_dot(d, g) / kDim;
    // Backpropagates through g = rstd * (h - mean(h) - n * mean(h * n)), where n is the normalized row. The argument of
    // norm.through() is the gradient with respect to n: the first term is the gradient through h, the other two are the
    // gradient through n * mean(h * n). The gradient through the factor rstd is added in the return statement
    // (`length`).
    const float2 d_y =
        norm.through(each([&](auto c) { return d_h.*c * weight.*c * weight.*c - d.*c * projection - h.*c * along; }));
    d_target = each([&](auto c) { return -(d_h.*c * weight.*c); });
    d_weight = each([&](auto c) { return d_weight.*c + (miss.*c + scaled.*c) * d_h.*c; });
    d_bias = each([&](auto c) { return d_bias.*c - d_target.*c; });
    return each([&](auto c) { return d_y.*c - norm.n.*c * length; });
  }
};

// Offsets at which the data of one chunk of a sequence and head begins in the tensors. `index` is the index of the
// chunk among the chunks of all sequences and heads. `slice` selects 64 columns of the first layer's weights and 64
// rows of the last layer's weights.
struct TokenIndex {
  int64_t index, H, T;

  __device__ const float* tokens(const float* all) const { return all + index * T * kDim; }
  __device__ float* tokens(float* all) const { return all + index * T * kDim; }
  __device__ int64_t hidden(int slice) const { return index * T * H + slice * kDim; }
  __device__ int64_t first(int slice) const { return index * kDim * H + slice * kDim; }
  __device__ int64_t last(int slice) const { return (index * (H == 0 ? kDim : H) + slice * kDim) * kDim; }
  __device__ int64_t first_bias(int slice) const { return index * H + slice * kDim; }
  __device__ int64_t last_bias() const { return index * kDim; }
};

// Launches one block, or one cluster of `blocks` blocks, per sequence and head. If `heads` is given, blockIdx.y is the
// head, and blockIdx.x enumerates the sequences.
template <typename Kernel, typename Problem>
void launch(Kernel kernel, int threads, int shared, const Problem& p, cudaStream_t stream, int64_t heads = 1,
            unsigned blocks = 1) {
  check(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, shared), "fast_weights");
  cudaLaunchAttribute cluster{};
  cluster.id = cudaLaunchAttributeClusterDimension;
  cluster.val.clusterDim = {blocks, 1, 1};
  cudaLaunchConfig_t config{};
  if (blocks > 1) config.attrs = &cluster, config.numAttrs = 1;
  config.gridDim = dim3(static_cast<unsigned>(p.N / heads) * blocks, static_cast<unsigned>(heads));
  config.blockDim = dim3(static_cast<unsigned>(threads));
  config.dynamicSmemBytes = static_cast<size_t>(shared);
  config.stream = stream;
  check(cudaLaunchKernelEx(&config, kernel, p), "fast_weights");
}

// Calls function(T, two_layers, momentum) with integral constants for the shape of the problem. Problems without
// momentum come from TTT. TTT has separate kernels and uses these kernels only for models with two layers and a hidden
// width that the separate kernels do not support.
template <typename Function>
void with_shape(const FastWeightsProblem& p, const Function& function) {
  if (!p.momentum) return function(std::integral_constant<int, 16>{}, std::true_type{}, std::false_type{});
  const std::integral_constant<int, 64> T;
  p.H > 0 ? function(T, std::true_type{}, std::true_type{}) : function(T, std::false_type{}, std::true_type{});
}

// Calls function(number of elements of W or S, layer) for each layer.
template <typename Function>
void each_layer(const FastWeightsProblem& p, const Function& function) {
  const int64_t numbers = p.N * kDim * (p.H == 0 ? kDim : p.H);
  if (p.first.W) function(numbers, p.first);
  function(numbers, p.last);
}
// Copies `from` to a tensor that the kernels update in place. If `from` is null, the tensor is filled with zeros.
inline void copy_to_place(float* to, const float* from, int64_t numbers, cudaStream_t stream) {
  if (!to || to == from) return;
  const size_t bytes = static_cast<size_t>(numbers) * sizeof(float);
  check(
      from ? cudaMemcpyAsync(to, from, bytes, cudaMemcpyDeviceToDevice, stream) : cudaMemsetAsync(to, 0, bytes, stream),
      "fast_weights");
}

// Dynamic shared memory of the backward pass in bytes. The forward pass needs less.
int backward_memory(bool momentum);
// Number of bytes per chunk, sequence and head that the cluster kernels save for the backward pass; see kept_bytes in
// ops/fast_weights.h.
int64_t kept_by_cluster(const FastWeightsProblem& p);
// Launch the cluster kernels, which distribute the state over a cluster of blocks. Return false if the kernels do not
// support the shape or the GPU.
bool forward_in_cluster(const FastWeightsProblem& p, cudaStream_t stream);
bool backward_in_cluster(const FastWeightsProblem& p, cudaStream_t stream);

}  // namespace lazy::ops::cuda::learning
