// Skinny GEMM for 9 to 64 rows of x. The results are bitwise equal to skinny_gemm.cu. For this small number of rows,
// all multiprocessors must load W at the same time. A block computes a tile of products, and each of its warps sums one
// part of the inner dimension. If there are few tiles, the blocks of a cluster share a tile. Each block then computes
// some of the parts. Each block also adds the partial sums of some of the rows, which the other blocks write to its
// shared memory.
//
// Each lane copies the fragments of both matrices that it uses itself to a ring buffer in shared memory. Until the sums
// are complete, a warp therefore waits only for its own copies. As in skinny_gemm.cu, the kernel computes the norm from
// the elements that it multiplies.
#include <algorithm>

#include "attention/cuda/decode_memory.cuh"
#include "attention/cuda/decode_params.h"
#include "ops/cuda/fast_weights_ptx.cuh"
#include "ops/cuda/skinny_gemm_finish.cuh"

namespace lazy::ops::cuda {

namespace step {

namespace decoding = kernels::cuda::decoding;

// A tile of TILES * 16 rows of W and GROUPS * 8 rows of x, computed by CLUSTER blocks. The inner dimension is divided
// into kParts parts, and each part into chunks of kChunk elements (skinny_gemm.cuh). One step of the main loop
// multiplies one chunk of each part. The ring buffer holds STAGES steps in flight; with kFewStages, less shared memory
// is used, so that more blocks fit on a multiprocessor.
template <int TILES_, int GROUPS_, int CLUSTER_, int STAGES_>
struct Split {
  static constexpr int TILES = TILES_, GROUPS = GROUPS_, CLUSTER = CLUSTER_, STAGES = STAGES_;
  static constexpr int kFewStages = STAGES / 2 + 1;
  static constexpr int kWarps = kParts / CLUSTER, kThreads = 32 * kWarps;
  static constexpr int kRowsW = 16 * TILES, kRowsX = 8 * GROUPS;
  static constexpr int kOwnX = kRowsX / CLUSTER;  // number of rows of x for which a block adds the partial sums
  static constexpr int kStride = kRowsW + 4;      // stride of a row of products, in floats
  // Layout of the data that a warp copies per step: fragments of W, fragments of x, weights of the norm.
  static constexpr int kPiece = 512;  // bytes that the lanes of a warp copy with one instruction
  static constexpr int kX = 2 * TILES * kPiece, kWeights = kX + GROUPS * kPiece, kWarpBytes = kWeights + 4 * kChunk;
  static constexpr int kStageBytes = kWarps * kWarpBytes;
  // Layout of shared memory: sums of squares (parts, kOwnX), products (parts, kOwnX, kStride), ring buffer. In a
  // cluster, the products have separate memory, because the products of other blocks arrive while the ring buffer is
  // still in use. A block without a cluster writes its products over the ring buffer.
  static constexpr int kProducts = kParts * kOwnX * 4, kProductsEnd = kProducts + kParts * kOwnX * kStride * 4;
  static constexpr int kRing = CLUSTER == 1 ? kProducts : kProductsEnd;
  static constexpr int bytes(int stages) { return std::max(kRing + stages * kStageBytes, kProductsEnd); }
  static_assert(kOwnX % 2 == 0 && kFewStages >= 2);
};

struct SplitRows {
  SkinnyGemm p;
  int stages;  // number of stages of the ring buffer: STAGES or kFewStages
};

template <typename T, typename N, bool NORM, Mode MODE>
__device__ __forceinline__ void multiply_parts(const SkinnyGemm& p, int stages) {
  extern __shared__ __align__(16) char memory[];
  char* const own = own_memory(memory);
  constexpr int TILES = N::TILES, GROUPS = N::GROUPS, CLUSTER = N::CLUSTER;
  const int lane = threadIdx.x % 32, g = lane / 4, c = lane % 4, warp = threadIdx.x / 32;
  // The grid has the width of a cluster, so blockIdx.x is the rank in the cluster.
  const int rank = blockIdx.x, part = rank * N::kWarps + warp;
  const int in = static_cast<int>(p.in), rows = static_cast<int>(p.rows);
  const int first_row = blockIdx.z * N::kRowsX, first_column = blockIdx.y * columns_of_tile(MODE, N::kRowsW);
  constexpr int kStep = kParts * kChunk;
  const int steps = (in + kStep - 1) / kStep;
  if constexpr (CLUSTER > 1) cluster_arrive();

  // copy_w and copy_x copy elements of W and x to the ring buffer. Rows beyond the last row of x or W repeat the last
  // row, and their products are not stored. Elements beyond `in` are zero.
  const uint32_t ring = kernels::cuda::shared_address(own) + N::kRing + warp * N::kWarpBytes;
  const int k0 = part * kChunk + 8 * c;
  // Offsets of the data of the first step in units of 16 bytes; pointers would need too many registers.
  uint32_t from_w[TILES][2], from_x[GROUPS];
#pragma unroll
  for (int t = 0; t < TILES; ++t) {
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const int row = row_in_tile<MODE>(p, first_column, 16 * t + 8 * h + g);
      from_w[t][h] = static_cast<uint32_t>((int64_t{row} * in + k0) / 8);
    }
  }
#pragma unroll
  for (int n = 0; n < GROUPS; ++n) {
    from_x[n] = static_cast<uint32_t>((min(first_row + n * 8 + g, rows - 1) * p.x_stride + k0) / 8);
  }
  const auto copy_w = [&](int stage, int step) {
    const uint32_t to = ring + stage * N::kStageBytes + lane * 16;
    const bool there = step * kStep + k0 < in;
    const uint32_t by = there ? step * (kStep / 8) : 0;
#pragma unroll
    for (int t = 0; t < TILES; ++t) {
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        kernels::cuda::copy_async(to + (2 * t + h) * N::kPiece, static_cast<const uint4*>(p.W) + (from_w[t][h] + by),
                                  there);
      }
    }
    if constexpr (NORM) {
      const int first = step * kStep + part * kChunk + 4 * lane;
      if (4 * lane < kChunk)
        kernels::cuda::copy_async(to + N::kWeights, p.norm_weight + (first < in ? first : 0), first < in);
    }
  };
  const auto copy_x = [&](int stage, int step) {
    const uint32_t to = ring + stage * N::kStageBytes + N::kX + lane * 16;
    const bool there = step * kStep + k0 < in;
    const uint32_t by = there ? step * (kStep / 8) : 0;
#pragma unroll
    for (int n = 0; n < GROUPS; ++n) {
      kernels::cuda::copy_async(to + n * N::kPiece, static_cast<const uint4*>(p.x) + (from_x[n] + by), there);
    }
  };
#pragma unroll
  for (int n = 0; n < N::STAGES; ++n) {
    if (n < stages && n < steps) copy_w(n, n);
  }
  decoding::let_next_start();
  decoding::wait_for_launcher();
#pragma unroll
  for (int n = 0; n < N::STAGES; ++n) {
    if (n >= stages) break;
    if (n < steps) copy_x(n, n);
    decoding::commit_copies();
  }

  static_assert(columns_of_tile(MODE, N::kRowsW) / 4 * N::kOwnX <= N::kThreads);
  const auto own_quad = [&] {  // the quad and its address are recomputed at each use to save registers
    return quad_of<MODE, N::kRowsW, N::kOwnX>(p, thread(), first_row + rank * N::kOwnX, first_column);
  };
  Beside beside{};
  if (const Quad quad = own_quad(); quad.there) {
    if constexpr (MODE == Mode::plain) beside.add = residual(p, quad);
    if constexpr (MODE == Mode::pages) {
      beside.angles = angles_of<4>(p.pages, pair_of(p.pages, quad.column), token_slot(p.pages, quad.row));
    }
  }

  float sum[TILES][GROUPS][4] = {}, square[GROUPS] = {};
  int stage = 0;
  for (int step = 0; step < steps; ++step) {
    if (stages == N::STAGES) {
      step == 0 ? decoding::wait_for_copies<N::STAGES - 1>() : decoding::wait_for_copies<N::STAGES - 2>();
    } else {
      step == 0 ? decoding::wait_for_copies<N::kFewStages - 1>() : decoding::wait_for_copies<N::kFewStages - 2>();
    }
    if constexpr (NORM) __syncwarp();  // the weights of the norm were copied by other lanes
    if (step > 0) {                    // copy the next step to the stage of the previous step, which has been consumed
      const int last = stage == 0 ? stages - 1 : stage - 1, next = step + stages - 1;
      if (next < steps) {
        copy_w(last, next);
        copy_x(last, next);
      }
      decoding::commit_copies();
    }
    const uint32_t at = ring + stage * N::kStageBytes;
    const auto load = [&](int from) { return decoding::load_shared(at + from); };
    uint4 x[GROUPS], w[TILES][2];  // all loads are issued before the first product
    if constexpr (NORM) {
      const auto weights = [&](int from) {
        const uint4 four = load(N::kWeights + c * 32 + from);
        return float4{__uint_as_float(four.x), __uint_as_float(four.y), __uint_as_float(four.z),
                      __uint_as_float(four.w)};
      };
      const float4 low = weights(0), high = weights(16);
#pragma unroll
      for (int n = 0; n < GROUPS; ++n)
        x[n] = apply_norm_weight<T>(load(N::kX + n * N::kPiece + lane * 16), low, high, square[n]);
    } else {
#pragma unroll
      for (int n = 0; n < GROUPS; ++n) x[n] = load(N::kX + n * N::kPiece + lane * 16);
    }
#pragma unroll
    for (int t = 0; t < TILES; ++t) {
#pragma unroll
      for (int h = 0; h < 2; ++h) w[t][h] = load((2 * t + h) * N::kPiece + lane * 16);
    }
#pragma unroll
    for (int n = 0; n < GROUPS; ++n) {
#pragma unroll
      for (int t = 0; t < TILES; ++t) {
        kernels::cuda::mma<T>(sum[t][n], {w[t][0].x, w[t][1].x, w[t][0].y, w[t][1].y}, x[n].x, x[n].y);
        kernels::cuda::mma<T>(sum[t][n], {w[t][0].z, w[t][1].z, w[t][0].w, w[t][1].w}, x[n].z, x[n].w);
      }
    }
    stage = stage + 1 == stages ? 0 : stage + 1;
  }

  const Quad quad = own_quad();
  if constexpr (MODE == Mode::pages) {
    if (quad.there) beside.place = token_slot(p.pages, quad.row);
  }
  // Send the partial sums to the block that adds them.
  auto* const squares = reinterpret_cast<float*>(own);
  auto* const products = reinterpret_cast<float*>(own + N::kProducts);
  if constexpr (CLUSTER > 1) {
    cluster_wait();  // waits until all blocks of the cluster have started
  } else {
    decoding::wait_for_copies<0>();
    __syncthreads();
  }
  const auto of_row = [](float* to, int m) { return CLUSTER == 1 ? to : of_block(to, m / N::kOwnX); };
#pragma unroll
  for (int n = 0; n < GROUPS; ++n) {
    const int m = n * 8 + 2 * c;  // rows m and m + 1 of x
    float* const to = of_row(products, m) + (part * N::kOwnX + m % N::kOwnX) * N::kStride + g;
#pragma unroll
    for (int t = 0; t < TILES; ++t) {
#pragma unroll
      for (int e = 0; e < 4; ++e) to[e % 2 * N::kStride + t * 16 + e / 2 * 8] = sum[t][n][e];
    }
  }
  if constexpr (NORM) {
#pragma unroll
    for (int n = 0; n < GROUPS; ++n) {
      square[n] += __shfl_xor_sync(~0u, square[n], 1);
      square[n] += __shfl_xor_sync(~0u, square[n], 2);
      const int m = n * 8 + g;
      if (c == 0) of_row(squares, m)[part * N::kOwnX + m % N::kOwnX] = square[n];
    }
  }
  if constexpr (CLUSTER > 1) {
    cluster_arrive();
    cluster_wait();
  } else {
    __syncthreads();
  }

  if (!quad.there) return;
  float scale = 1;
  if constexpr (NORM) {
    float all = 0;
#pragma unroll
    for (int i = 0; i < kParts; ++i) all += squares[i * N::kOwnX + quad.m];
    scale = 1 / sqrtf(all / static_cast<float>(in) + p.eps);
  }
  finish<T, MODE>(p, quad, beside, [&](int r) {
    float4 all{};
#pragma unroll
    for (int i = 0; i < kParts; ++i) {
      all = all + *reinterpret_cast<const float4*>(products + (i * N::kOwnX + quad.m) * N::kStride + r);
    }
    return all * scale;
  });
}

template <typename T, typename N, bool NORM, Mode MODE>
__global__ void __launch_bounds__(N::kThreads, 512 / N::kThreads) multiply_split(const __grid_constant__ SplitRows a) {
  if constexpr (N::CLUSTER == 1 || kClusters) multiply_parts<T, N, NORM, MODE>(a.p, a.stages);
}

template <typename T, typename N, bool NORM, Mode MODE>
void start_split(const SkinnyGemm& p, cudaStream_t stream) {
  const dim3 grid(N::CLUSTER, ceil_div(p.out, columns_of_tile(MODE, N::kRowsW)), ceil_div(p.rows, N::kRowsX));
  const int steps = static_cast<int>(ceil_div(p.in, kParts * kChunk));
  // Two blocks run on each multiprocessor if the grid has enough blocks.
  const bool two = int64_t{grid.x} * grid.y * grid.z > decoding::gpu_attribute(cudaDevAttrMultiProcessorCount);
  const auto bytes = [&](int stages) { return N::bytes(std::min(stages, steps)); };
  const int most = decoding::gpu_attribute(cudaDevAttrMaxSharedMemoryPerBlockOptin);
  const int stages = bytes(N::STAGES) * (two ? 2 : 1) <= most ? N::STAGES : N::kFewStages;
  decoding::start<multiply_split<T, N, NORM, MODE>>(SplitRows{p, stages}, grid, N::kThreads, bytes(stages), true,
                                                    stream, N::CLUSTER);
}

// The configurations in multiply_by_parts that use clusters, or small tiles, are used for products with at most this
// number of tiles. A tile has 16 rows of W and 16 or 32 rows of x.
constexpr unsigned kFewTiles = 128;

template <typename T, bool NORM, Mode MODE>
void multiply_by_parts(const SkinnyGemm& p, cudaStream_t stream) {
  const bool sixteen = p.rows <= 16;
  if constexpr (MODE == Mode::plain) {
    if (ceil_div(p.out, 16) * ceil_div(p.rows, sixteen ? 16 : 32) <= kFewTiles) {
      using Sixteen = Split<2, 2, 4, 11>;
      using Cluster = Split<1, 4, 2, 11>;
      using Block = Split<1, 4, 1, 4>;
      const bool clusters = decoding::has_sm_90<multiply_split<T, Cluster, NORM, MODE>>();
      if (clusters && sixteen) return start_split<T, Sixteen, NORM, MODE>(p, stream);
      // If all steps of a single block can be in flight at the same time, a cluster is not faster.
      if (clusters && p.in > Block::STAGES * kParts * kChunk) return start_split<T, Cluster, NORM, MODE>(p, stream);
      return start_split<T, Block, NORM, MODE>(p, stream);
    }
  }
  sixteen ? start_split<T, Split<2, 2, 1, 4>, NORM, MODE>(p, stream)
          : start_split<T, Split<2, 4, 1, 3>, NORM, MODE>(p, stream);
}

}  // namespace step

void skinny_gemm_split(const SkinnyGemm& p, cudaStream_t stream) {
  step::with_kind(p,
                  [&]<typename T, bool NORM, step::Mode MODE>() { step::multiply_by_parts<T, NORM, MODE>(p, stream); });
}

}  // namespace lazy::ops::cuda
