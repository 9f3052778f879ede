// Skinny GEMM for products with many rows or columns. The results are bitwise equal to skinny_gemm.cu. The warps of a
// block share the data that they read: chunks of both matrices are copied to a ring buffer in shared memory. Each warp
// computes a separate tile and processes the parts of the inner dimension in succession.
//
// If this kernel computed the norm of x, it would have to do so again for every tile of W. Therefore a separate kernel
// first multiplies x by the norm weights and computes the reciprocal root mean square of each row, by which the
// products are multiplied later.
#include <algorithm>

#include "attention/cuda/decode_memory.cuh"
#include "attention/cuda/decode_params.h"
#include "ops/cuda/skinny_gemm_finish.cuh"
#include "ops/cuda/skinny_gemm_norm.cuh"

namespace lazy::ops::cuda {

namespace step {

namespace decoding = kernels::cuda::decoding;

constexpr int kRingBytes = decoding::kSharedMost;

// Tile of a warp: TILES * 16 rows of W and GROUPS * 8 rows of x. A block has WARPS_W * WARPS_X warps.
template <int TILES_, int GROUPS_, int WARPS_W_, int WARPS_X_>
struct Tiling {
  static constexpr int TILES = TILES_, GROUPS = GROUPS_, WARPS_W = WARPS_W_, WARPS_X = WARPS_X_;
  static constexpr int kThreads = 32 * WARPS_W * WARPS_X;
  static constexpr int kRowsW = 16 * TILES * WARPS_W, kRowsX = 8 * GROUPS * WARPS_X;
  static constexpr int kStageBytes = (kRowsW + kRowsX) * kChunkBytes;
  static constexpr int kStages = std::min(kRingBytes / kStageBytes, 6);
  static constexpr int kStride = kRowsW + 4;  // stride of a row of products, in floats
  static constexpr int kBytes = std::max(kStages * kStageBytes, kRowsX* kStride * 4);
  // Minimum number of blocks per multiprocessor, for __launch_bounds__.
  static constexpr int kBlocks = kThreads * TILES * GROUPS <= 2048 ? 512 / kThreads : 1;
  static_assert(kStages >= 3 && kBytes <= kRingBytes);
};

// The order of the chunks: all chunks of a part, then all chunks of the next part.
struct ChunkOrder {
  int all, chunk = 0;
  __device__ bool ends_part() const { return chunk + kParts >= all; }
  __device__ void advance() { chunk = ends_part() ? chunk % kParts + 1 : chunk + kParts; }
};

template <typename T, typename N, Mode MODE>
__global__ void __launch_bounds__(N::kThreads, N::kBlocks) multiply_tiles(const __grid_constant__ SkinnyGemm p) {
  extern __shared__ __align__(16) char memory[];
  __shared__ TokenSlot places[MODE == Mode::pages ? N::kRowsX : 1];
  constexpr int kThreads = N::kThreads, TILES = N::TILES, GROUPS = N::GROUPS;
  const int lane = threadIdx.x % 32, g = lane / 4, c = lane % 4, warp = threadIdx.x / 32;
  const int warp_w = warp % N::WARPS_W, warp_x = warp / N::WARPS_W;
  const bool scaled_x = p.norm_weight;  // whether x was multiplied by the norm weights in the previous kernel
  const int in = static_cast<int>(p.in), rows = static_cast<int>(p.rows);
  const int first_row = blockIdx.x * N::kRowsX, first_column = blockIdx.y * columns_of_tile(MODE, N::kRowsW);
  const uint32_t ring = kernels::cuda::shared_address(memory);

  // copy_w and copy_x copy rows of W and x to the ring buffer. In every step, a thread copies the same piece of its
  // rows. Rows beyond the last row of x or W repeat the last row; their products are not stored.
  constexpr int kPitch = kThreads / kPieces;  // distance in rows between the copies of a thread
  constexpr int kCopiesW = N::kRowsW / kPitch, kCopiesX = N::kRowsX / kPitch;
  static_assert(kThreads % kPieces == 0 && N::kRowsW % kPitch == 0 && N::kRowsX % kPitch == 0);
  const int piece = threadIdx.x % kPieces, k0 = piece * 8, row0 = threadIdx.x / kPieces;
  const uint32_t to = ring + row0 * kChunkBytes + piece * 16;
  const T *from_w[kCopiesW], *from_x[kCopiesX];
#pragma unroll
  for (int i = 0; i < kCopiesW; ++i) {
    const int row = row_in_tile<MODE>(p, first_column, row0 + i * kPitch);
    from_w[i] = static_cast<const T*>(p.W) + static_cast<int64_t>(row) * in + k0;
  }
#pragma unroll
  for (int i = 0; i < kCopiesX; ++i) {
    const int row = min(first_row + row0 + i * kPitch, rows - 1);
    from_x[i] = static_cast<const T*>(scaled_x ? p.scaled_x : p.x) + row * (scaled_x ? p.in : p.x_stride) + k0;
  }
  const auto copy_w = [&](int stage, int chunk) {
    const int k = chunk * kChunk;
#pragma unroll
    for (int i = 0; i < kCopiesW; ++i) {
      kernels::cuda::copy_async(to + stage * N::kStageBytes + i * kPitch * kChunkBytes, from_w[i] + k, k + k0 < in);
    }
  };
  const auto copy_x = [&](int stage, int chunk) {
    const int k = chunk * kChunk;
#pragma unroll
    for (int i = 0; i < kCopiesX; ++i) {
      kernels::cuda::copy_async(to + stage * N::kStageBytes + (N::kRowsW + i * kPitch) * kChunkBytes, from_x[i] + k,
                                k + k0 < in);
    }
  };

  // The copies of all stages are issued before the kernel waits for the first stage.
  const int steps = (in + kChunk - 1) / kChunk;
  ChunkOrder ahead{steps}, now = ahead;
#pragma unroll
  for (int n = 0; n < N::kStages; ++n) {
    if (n < steps) copy_w(n, ahead.chunk);
    ahead.advance();
  }
  decoding::let_next_start();
  decoding::wait_for_launcher();
  ahead.chunk = 0;
#pragma unroll
  for (int n = 0; n < N::kStages; ++n) {
    if (n < steps) copy_x(n, ahead.chunk);
    ahead.advance();
    decoding::commit_copies();
  }

  if constexpr (MODE == Mode::pages) {
    const int m = threadIdx.x;
    if (m < N::kRowsX && first_row + m < rows) places[m] = token_slot(p.pages, first_row + m);
  }

  float sum[TILES][GROUPS][4] = {}, total[TILES][GROUPS][4] = {};
  const auto each = [](const auto& work) {
#pragma unroll
    for (int t = 0; t < TILES; ++t) {
#pragma unroll
      for (int n = 0; n < GROUPS; ++n) {
#pragma unroll
        for (int e = 0; e < 4; ++e) work(t, n, e);
      }
    }
  };
  const uint32_t mine = ring + g * kChunkBytes + c * 16;
  const uint32_t mine_w = mine + warp_w * TILES * 16 * kChunkBytes,
                 mine_x = mine + (N::kRowsW + warp_x * GROUPS * 8) * kChunkBytes;
  int stage = 0;
  for (int step = 0; step < steps; ++step) {
    step == 0 ? decoding::wait_for_copies<N::kStages - 1>() : decoding::wait_for_copies<N::kStages - 2>();
    __syncthreads();
    if (step > 0) {  // copy the next step to the stage of the previous step, which has been consumed
      const int last = stage == 0 ? N::kStages - 1 : stage - 1;
      if (step + N::kStages - 1 < steps) {
        copy_w(last, ahead.chunk);
        copy_x(last, ahead.chunk);
        ahead.advance();
      }
      decoding::commit_copies();
    }
    const uint32_t at = static_cast<uint32_t>(stage * N::kStageBytes);
    uint4 w[TILES][2];
#pragma unroll
    for (int t = 0; t < TILES; ++t) {
      w[t][0] = decoding::load_shared(mine_w + at + t * 16 * kChunkBytes);
      w[t][1] = decoding::load_shared(mine_w + at + (t * 16 + 8) * kChunkBytes);
    }
#pragma unroll
    for (int n = 0; n < GROUPS; ++n) {
      const uint4 b = decoding::load_shared(mine_x + at + n * 8 * kChunkBytes);
#pragma unroll
      for (int t = 0; t < TILES; ++t) {
        kernels::cuda::mma<T>(sum[t][n], {w[t][0].x, w[t][1].x, w[t][0].y, w[t][1].y}, b.x, b.y);
        kernels::cuda::mma<T>(sum[t][n], {w[t][0].z, w[t][1].z, w[t][0].w, w[t][1].w}, b.z, b.w);
      }
    }
    if (now.ends_part()) {
      each([&](int t, int n, int e) {
        total[t][n][e] += sum[t][n][e];
        sum[t][n][e] = 0;
      });
    }
    now.advance();
    stage = stage + 1 == N::kStages ? 0 : stage + 1;
  }

  // The products (rows of x, rows of W) overwrite the ring buffer.
  decoding::wait_for_copies<0>();
  __syncthreads();
  auto* const products = reinterpret_cast<float*>(memory);
  // Element e belongs to row g (e < 2) or g + 8 of the tile of W, and to row 2 c or 2 c + 1 of the group of 8 rows of
  // x.
  each([&](int t, int n, int e) {
    const int m = (warp_x * GROUPS + n) * 8 + 2 * c + e % 2;
    products[m * N::kStride + (warp_w * TILES + t) * 16 + g + e / 2 * 8] = total[t][n][e];
  });
  finish_tile<T, N, MODE>(p, first_row, first_column, places, products,
                          [&](const Quad& quad) { return scaled_x ? __ldcg(p.scales + quad.row) : 1; });
}

template <typename T, typename N, Mode MODE>
void launch_tiles(const SkinnyGemm& p, const dim3& grid, cudaStream_t stream) {
  if (p.norm_weight) start_norm_weights<T, false>(p, stream);
  decoding::start<multiply_tiles<T, N, MODE>>(p, grid, N::kThreads, N::kBytes, true, stream);
}

// Chooses the tile size. Large tiles read less data, because each matrix is read once for every tile of the other
// matrix. Small tiles give more blocks, which use more of the GPU.
template <typename T, Mode MODE>
void multiply_by_tiles(const SkinnyGemm& p, cudaStream_t stream) {
  bool done = false;
  const auto unless_done = [&](auto tiling, int64_t least_rows, int64_t least_blocks) {
    using N = decltype(tiling);
    if (done || p.rows < least_rows) return;
    const dim3 grid(ceil_div(p.rows, N::kRowsX), ceil_div(p.out, columns_of_tile(MODE, N::kRowsW)));
    if (int64_t{grid.x} * grid.y < least_blocks) return;
    launch_tiles<T, N, MODE>(p, grid, stream);
    done = true;
  };
  unless_done(Tiling<2, 8, 4, 2>{}, 65, 80);   // tile: 128 rows of W, 128 rows of x
  unless_done(Tiling<2, 4, 4, 2>{}, 33, 80);   // tile: 128 rows of W, 64 rows of x
  unless_done(Tiling<2, 4, 2, 2>{}, 65, 32);   // tile: 64 rows of W, 64 rows of x
  unless_done(Tiling<2, 2, 2, 2>{}, 17, 400);  // tile: 64 rows of W, 32 rows of x
  if (!done) skinny_gemm_split(p, stream);
}

}  // namespace step

void skinny_gemm_tiles(const SkinnyGemm& p, cudaStream_t stream) {
  const auto of_type = [&](auto type) {
    using T = decltype(type);
    if (!p.y) return step::multiply_by_tiles<T, step::Mode::pages>(p, stream);
    p.swiglu ? step::multiply_by_tiles<T, step::Mode::swiglu>(p, stream)
             : step::multiply_by_tiles<T, step::Mode::plain>(p, stream);
  };
  p.type == DType::bf16 ? of_type(__nv_bfloat16{}) : of_type(__half{});
}

}  // namespace lazy::ops::cuda
