// Products of some ten to a few hundred rows with a matrix, bit for bit those of few_rows.cu. Blocks of columns and
// rows share what they read: chunks of both matrices come through a ring in shared memory, and a warp multiplies a tile
// of its own. With PARTS 8 each of a block's warps has one part of the block's tile, for so few rows that the matrix
// has to be on its way in every multiprocessor at once; else a warp goes through the parts one after the other.
//
// With PARTS 8 a warp takes the norm of what it multiplies, as in few_rows.cu. Else warps would do so once for each
// tile of W, and a kernel in front does: x times its weights, and what every row's products are to be multiplied by.
#include <algorithm>

#include "attention/cuda/decode_memory.cuh"
#include "attention/cuda/decode_params.h"
#include "ops/cuda/few_rows_block.cuh"

namespace lazy::ops::cuda {

namespace step {

namespace decoding = kernels::cuda::decoding;

constexpr int kRingBytes = decoding::kSharedMost;

// A warp's tile: TILES of 16 rows of W and GROUPS of 8 rows of x. A block has WARPS_W by WARPS_X of them, PARTS times.
template <int TILES_, int GROUPS_, int WARPS_W_, int WARPS_X_, int PARTS_>
struct Tiling {
  static constexpr int TILES = TILES_, GROUPS = GROUPS_, WARPS_W = WARPS_W_, WARPS_X = WARPS_X_, PARTS = PARTS_;
  static constexpr int kThreads = 32 * WARPS_W * WARPS_X * PARTS;
  static constexpr int kRowsW = 16 * TILES * WARPS_W, kRowsX = 8 * GROUPS * WARPS_X, kRows = kRowsW + kRowsX;
  static constexpr int kStageBytes = PARTS * kRows * kChunkBytes;
  static constexpr int kStages = std::min(kRingBytes / kStageBytes, 6);
  static constexpr int kStride = kRowsW + 4;  // of a row of products, in floats
  static constexpr int kBytes = std::max(kStages * kStageBytes, PARTS* kRowsX* kStride * 4);
  static constexpr int kBlocks = kThreads * TILES * GROUPS <= 2048 ? 512 / kThreads : 1;  // a multiprocessor
  static_assert(kStages >= 3 && kBytes <= kRingBytes && (PARTS == 1 || PARTS == kParts));
};

// The order in which chunks come, of which a block takes PARTS at a time.
template <int PARTS>
struct Chunks {
  int all, chunk = 0;
  __device__ int steps() const { return (all + PARTS - 1) / PARTS; }
  __device__ bool ends_part() const { return chunk + kParts >= all; }
  __device__ void advance() { chunk = PARTS == 1 && ends_part() ? chunk % kParts + 1 : chunk + kParts; }
};

// NORM: the norm is taken here.
template <typename T, typename N, bool NORM, Mode MODE>
__global__ void __launch_bounds__(N::kThreads, N::kBlocks) multiply_tiles(const __grid_constant__ FewRows p) {
  extern __shared__ __align__(16) char memory[];
  __shared__ float squares[NORM ? kParts : 1][NORM ? N::kRowsX : 1];
  __shared__ Place places[MODE == Mode::pages ? N::kRowsX : 1];
  constexpr int kThreads = N::kThreads, kRows = N::kRows, PARTS = N::PARTS, TILES = N::TILES, GROUPS = N::GROUPS;
  const int lane = threadIdx.x % 32, g = lane / 4, c = lane % 4, warp = threadIdx.x / 32;
  const int part = PARTS == 1 ? 0 : warp, warp_w = PARTS == 1 ? warp % N::WARPS_W : 0,
            warp_x = PARTS == 1 ? warp / N::WARPS_W : 0;
  static_assert(PARTS == 1 ? !NORM : N::WARPS_W * N::WARPS_X == 1);
  const bool weighed = !NORM && p.norm_weight;  // by the kernel in front
  const int in = static_cast<int>(p.in), out = static_cast<int>(p.out), rows = static_cast<int>(p.rows);
  const int first_row = blockIdx.x * N::kRowsX;
  constexpr bool kPairs = MODE != Mode::plain;
  constexpr int kColumns = kPairs ? N::kRowsW / 2 : N::kRowsW;  // of y
  const int first_column = blockIdx.y * kColumns;
  const uint32_t ring = kernels::cuda::shared_address(memory);

  // Copies. A thread has the same piece of rows of both matrices in every step; tiles of a result's two products
  // take turns. What is behind the last row or column is multiplied like the last one, and not stored. Rows of
  // neighbouring parts are swapped by twos, which keeps a row's pieces in different banks.
  constexpr int kOfRow = PARTS * kPieces,
                kPitch = kThreads / kOfRow;  // pieces of a row; rows between a thread's copies
  constexpr int kCopiesW = N::kRowsW / kPitch, kCopiesX = N::kRowsX / kPitch;
  static_assert(kThreads % kOfRow == 0 && kPitch % 2 == 0 && N::kRowsW % kPitch == 0 && N::kRowsX % kPitch == 0);
  const int piece = threadIdx.x % kOfRow, of_part = piece / kPieces, k0 = piece * 8, row0 = threadIdx.x / kOfRow;
  const uint32_t to =
      ring + (of_part * kRows + (row0 ^ (of_part & 1))) * kChunkBytes + static_cast<uint32_t>(piece % kPieces * 16);
  const T *from_w[kCopiesW], *from_x[kCopiesX];
#pragma unroll
  for (int i = 0; i < kCopiesW; ++i) {
    const int row = row0 + i * kPitch, tile = row / 16;
    const int column = min(first_column + (kPairs ? tile / 2 * 16 + row % 16 : row), out - 1);
    from_w[i] =
        static_cast<const T*>(p.W) + static_cast<int64_t>(row_of<MODE>(p, column, kPairs ? tile % 2 : 0)) * in + k0;
  }
#pragma unroll
  for (int i = 0; i < kCopiesX; ++i) {
    const int row = min(first_row + row0 + i * kPitch, rows - 1);
    from_x[i] = static_cast<const T*>(weighed ? p.weighed : p.x) + row * (weighed ? p.in : p.x_stride) + k0;
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

  // All stages are asked for before the first one is waited for.
  Chunks<PARTS> ahead{(in + kChunk - 1) / kChunk}, now = ahead;
  const int steps = now.steps();
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
    if (m < N::kRowsX && first_row + m < rows) places[m] = place_of(p.pages, first_row + m);
  }

  float sum[TILES][GROUPS][4] = {}, total[TILES][GROUPS][4] = {}, square[GROUPS] = {};
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
  const uint32_t mine = ring + (part * kRows + (g ^ (part & 1))) * kChunkBytes + c * 16;
  const uint32_t mine_w = mine + warp_w * TILES * 16 * kChunkBytes,
                 mine_x = mine + (N::kRowsW + warp_x * GROUPS * 8) * kChunkBytes;
  int stage = 0;
  for (int step = 0; step < steps; ++step) {
    step == 0 ? decoding::wait_for_copies<N::kStages - 1>() : decoding::wait_for_copies<N::kStages - 2>();
    __syncthreads();
    if (step > 0) {  // into the place of the step in front, which is used up
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
    float4 low{}, high{};  // the norm's weights of this chunk's piece
    if constexpr (NORM) {
      const int k = (now.chunk + part) * kChunk + 8 * c;
      if (k < in) {
        low = __ldg(reinterpret_cast<const float4*>(p.norm_weight + k));
        high = __ldg(reinterpret_cast<const float4*>(p.norm_weight + k + 4));
      }
    }
#pragma unroll
    for (int n = 0; n < GROUPS; ++n) {
      uint4 b = decoding::load_shared(mine_x + at + n * 8 * kChunkBytes);
      if constexpr (NORM) b = weigh<T>(b, low, high, square[n]);
#pragma unroll
      for (int t = 0; t < TILES; ++t) {
        kernels::cuda::mma<T>(sum[t][n], {w[t][0].x, w[t][1].x, w[t][0].y, w[t][1].y}, b.x, b.y);
        kernels::cuda::mma<T>(sum[t][n], {w[t][0].z, w[t][1].z, w[t][0].w, w[t][1].w}, b.z, b.w);
      }
    }
    if (PARTS == 1 && now.ends_part()) {
      each([&](int t, int n, int e) {
        total[t][n][e] += sum[t][n][e];
        sum[t][n][e] = 0;
      });
    }
    now.advance();
    stage = stage + 1 == N::kStages ? 0 : stage + 1;
  }

  // The parts' products (PARTS, rows of x, rows of W) take the ring's place.
  decoding::wait_for_copies<0>();
  __syncthreads();
  auto* const products = reinterpret_cast<float*>(memory);
  each([&](int t, int n, int e) {  // row g (e < 2) or g + 8 of the tile, row 2 c or 2 c + 1 of x's group
    const int m = part * N::kRowsX + (warp_x * GROUPS + n) * 8 + 2 * c + e % 2;
    products[m * N::kStride + (warp_w * TILES + t) * 16 + g + e / 2 * 8] = PARTS == 1 ? total[t][n][e] : sum[t][n][e];
  });
  if constexpr (NORM) {
#pragma unroll
    for (int n = 0; n < GROUPS; ++n) {
      square[n] += __shfl_xor_sync(~0u, square[n], 1);
      square[n] += __shfl_xor_sync(~0u, square[n], 2);
      if (c == 0) squares[part][n * 8 + g] = square[n];
    }
  }
  const auto scale_of = [&](int m) {
    if constexpr (NORM) {
      float all = 0;
#pragma unroll
      for (int i = 0; i < kParts; ++i) all += squares[i][m];
      return 1 / sqrtf(all / static_cast<float>(in) + p.eps);
    } else {
      return weighed ? __ldcg(p.scales + first_row + m) : 1;
    }
  };
  const auto product = [&](int m, int r, int half) {
    const int row = kPairs ? r / 16 * 32 + r % 16 + half * 16 : r;
    float4 all{};
#pragma unroll
    for (int i = 0; i < PARTS; ++i) {
      all = all + *reinterpret_cast<const float4*>(products + (i * N::kRowsX + m) * N::kStride + row);
    }
    return all;
  };
  finish_block<T, MODE, kColumns, N::kRowsX, kThreads>(p, first_row, first_column, places, scale_of, product);
}

template <typename T, typename N, Mode MODE>
void launch_tiles(const FewRows& p, const dim3& grid, cudaStream_t stream) {
  const auto multiply = [&](auto norm) {
    decoding::start<multiply_tiles<T, N, decltype(norm)::value, MODE>>(p, grid, N::kThreads, N::kBytes, true, stream);
  };
  if constexpr (N::PARTS == 1) {
    if (p.norm_weight) start_weighing<T, false>(p, stream);
    multiply(std::false_type{});
  } else {
    if (MODE == Mode::pages || p.norm_weight) return multiply(std::true_type{});
    if constexpr (MODE != Mode::pages) multiply(std::false_type{});
  }
}

// Blocks of tiles that are large read less, as each of the matrices is read once for every tile of the other; blocks
// that are many keep more of the GPU at work.
template <typename T, Mode MODE>
void multiply_by_tiles(const FewRows& p, cudaStream_t stream) {
  constexpr bool kPairs = MODE != Mode::plain;
  bool done = false;
  const auto unless_done = [&](auto tiling, int64_t least_rows, int64_t least_blocks) {
    using N = decltype(tiling);
    if (done || p.rows < least_rows) return;
    const dim3 grid(ceil_div(p.rows, N::kRowsX), ceil_div(p.out, kPairs ? N::kRowsW / 2 : N::kRowsW));
    if (int64_t{grid.x} * grid.y < least_blocks) return;
    launch_tiles<T, N, MODE>(p, grid, stream);
    done = true;
  };
  unless_done(Tiling<2, 8, 4, 2, 1>{}, 65, 80);                        // 128 rows of W, 128 of x
  unless_done(Tiling<2, 4, 4, 2, 1>{}, 33, 80);                        // 128, 64
  unless_done(Tiling<2, 4, 2, 2, 1>{}, 33, 32);                        // 64, 64
  unless_done(Tiling<2, 2, 2, 2, 1>{}, 17, 400);                       // 64, 32
  unless_done(Tiling<2, 4, 1, 1, 8>{}, 17, kPairs ? 0 : 64);           // 32, 32
  if constexpr (!kPairs) unless_done(Tiling<1, 4, 1, 1, 8>{}, 17, 0);  // 16, 32
  unless_done(Tiling<2, 2, 1, 1, 8>{}, 0, kPairs ? 0 : 64);            // 32, 16
  if constexpr (!kPairs) unless_done(Tiling<1, 2, 1, 1, 8>{}, 0, 0);   // 16, 16
}

}  // namespace step

void few_rows_tiles(const FewRows& p, cudaStream_t stream) {
  const auto of_type = [&](auto type) {
    using T = decltype(type);
    if (!p.y) return step::multiply_by_tiles<T, step::Mode::pages>(p, stream);
    p.swiglu ? step::multiply_by_tiles<T, step::Mode::swiglu>(p, stream)
             : step::multiply_by_tiles<T, step::Mode::plain>(p, stream);
  };
  p.type == DType::bf16 ? of_type(__nv_bfloat16{}) : of_type(__half{});
}

}  // namespace lazy::ops::cuda
