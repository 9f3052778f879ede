// Products of more than 64 rows on Hopper, bit for bit those of few_rows.cu: wgmma, whose sums are mma.sync's. Rows of
// W are A, from registers, rows of x are B, from shared memory; wgmma wants that as core matrices of 8 rows by 16
// bytes. A chunk of 8 rows of x is four of them: matrix m has of every row the numbers 8 c + 2 m + {0, 1}, c = 0..3.
// Two matrices are then the numbers of one mma in few_rows.cu, whose fragments of W are a lane's 16 bytes.
//
// A product that few blocks can share has a cluster of kParts blocks a tile, each with its part of the summed axis. Of
// others a block goes through the parts one after the other, and a kernel in front weighs and packs x.
#include <algorithm>

#include "attention/cuda/decode_memory.cuh"
#include "attention/cuda/decode_params.h"
#include "attention/cuda/hopper.cuh"
#include "ops/cuda/fast_weights_ptx.cuh"
#include "ops/cuda/few_rows_weigh.cuh"

namespace lazy::ops::cuda {

namespace step {

namespace decoding = kernels::cuda::decoding;
using kernels::cuda::wgmma_wait;

constexpr int kLeastRows = 65;
constexpr int kRingBytes = 180 << 10;  // with all else of a block's within kSharedPercent of a multiprocessor's

// Where a lane has its 16 bytes of a tile of W: rows of kChunkBytes, of which a warp has 16.
__device__ inline uint32_t own_w() {
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  return (warp * 16 + lane / 4) * kChunkBytes + lane % 4 * 16;
}
struct Fragments {
  uint4 low, high;  // of row lane / 4 of a warp's 16, and 8 rows further
  __device__ explicit Fragments(uint32_t at)
      : low(decoding::load_shared(at)), high(decoding::load_shared(at + 8 * kChunkBytes)) {}
};
// The same in the order of two operands. wgmma reads registers until it has ended, which the compiler does not know:
// hold() stands where it has, so that the registers are no others' up to there. `zero` is one that the compiler does
// not know either, or it would copy an operand's registers once more, and nothing held the copies.
struct Operands {
  uint32_t a[2][4] = {};
  __device__ void set(const Fragments& w, uint32_t zero) {
    const uint32_t words[2][4] = {{w.low.x, w.high.x, w.low.y, w.high.y}, {w.low.z, w.high.z, w.low.w, w.high.w}};
#pragma unroll
    for (int n = 0; n < 8; ++n) a[n / 4][n % 4] = kernels::cuda::exclusive_or(words[n / 4][n % 4], zero);
  }
  __device__ void hold() {
#pragma unroll
    for (int n = 0; n < 8; ++n) kernels::cuda::keep_register(a[n / 4][n % 4]);
  }
};
__device__ inline uint32_t unknown_zero(const FewRows& p) { return __float_as_uint(p.eps) >> 31; }
// sum (64 rows of W by x's) is begun or gone on with by a chunk, whose x lies at `x`.
template <typename T, int SUMS>
__device__ void multiply_chunk(float (&sum)[SUMS], const Operands& w, uint32_t x, bool goes_on) {
  using namespace kernels::cuda;
  constexpr int kMatrix = 8 * 16;
  const uint64_t first = core_descriptor(x, kMatrix, kGroupBytes),
                 second = core_descriptor(x + 2 * kMatrix, kMatrix, kGroupBytes);
  wgmma_fence();
  wgmma<T, 0>(sum, w.a[0], first, goes_on);
  wgmma<T, 0>(sum, w.a[1], second, 1);
  wgmma_commit();
}
template <int SUMS>
__device__ void finish_products(float (&sum)[SUMS]) {
  wgmma_wait<0>();
  kernels::cuda::fence_registers(sum);
}
// To (rows of x, stride).
template <int SUMS>
__device__ void store_sums(const float (&sum)[SUMS], float* to, int stride) {
  const int lane = threadIdx.x % 32, row = threadIdx.x / 32 * 16 + lane / 4;
#pragma unroll
  for (int n = 0; n < SUMS; ++n) {
    to[(n / 4 * 8 + lane % 4 * 2 + n % 2) * stride + row + n / 2 % 2 * 8] = sum[n];
  }
}

// A tile of 64 rows of W for each of WARPGROUPS by ROWS rows of x, and a warpgroup that copies.
template <int WARPGROUPS, int ROWS>
struct Wide {
  static constexpr int kConsumers = 128 * WARPGROUPS, kThreads = kConsumers + 128;
  static constexpr int kRowsW = 64 * WARPGROUPS, kRowsX = ROWS, kSums = ROWS / 2;
  static constexpr int kChunkX = kRowsX * kChunkBytes, kStage = kChunkX + kRowsW * kChunkBytes;
  static constexpr int kStages = kRingBytes / kStage;
  static constexpr int kStride = kRowsW + 4, kBytes = std::max(kStages * kStage, kRowsX*kStride * 4);
};

template <typename T, typename N, Mode MODE>
__global__ void __launch_bounds__(N::kThreads, 1) multiply_wide(const __grid_constant__ FewRows p) {
  using namespace kernels::cuda;
  extern __shared__ __align__(128) char memory[];
  __shared__ Pipeline<N::kStages> ring;
  __shared__ Place places[MODE == Mode::pages ? N::kRowsX : 1];
  __shared__ float scales[N::kRowsX];
  const int in = static_cast<int>(p.in), rows = static_cast<int>(p.rows), chunks = in / (kParts * kChunk);  // of a part
  const int first_column = blockIdx.x * columns_of_tile(MODE, N::kRowsW), first_row = blockIdx.y * N::kRowsX;
  const uint32_t stages = shared_address(memory);
  if (threadIdx.x == 0) {
    ring.init(N::kConsumers / 32, 128 + 1);  // every copying thread's rows of W, and x
    fence_barriers();
  }
  decoding::let_next_start();
  __syncthreads();
  float total[N::kSums] = {};  // of a consumer
  if (threadIdx.x >= N::kConsumers) {
    const int t = threadIdx.x - N::kConsumers, piece = t % kPieces, row0 = t / kPieces;
    constexpr int kPitch = 128 / kPieces, kCopies = N::kRowsW / kPitch;
    const auto w_row = [&](int row) {
      return static_cast<const T*>(p.W) + static_cast<int64_t>(row_in_tile<MODE>(p, first_column, row)) * in;
    };
    if (t < N::kRowsW) prefetch_bytes(w_row(t), 2 * in);
    const T* from_w[kCopies];
#pragma unroll
    for (int i = 0; i < kCopies; ++i) from_w[i] = w_row(row0 + i * kPitch) + piece * 8;
    const int groups = groups_of(rows), own_groups = min(N::kRowsX / 8, groups - first_row / 8);
    const auto chunk_of = [&](int step) { return step / chunks + step % chunks * kParts; };
    const auto copy_w = [&](int step) {
      const int stage = step % N::kStages, k = chunk_of(step) * kChunk;
      const uint32_t to = stages + stage * N::kStage + N::kChunkX + row0 * kChunkBytes + piece * 16;
#pragma unroll
      for (int i = 0; i < kCopies; ++i) copy_async(to + i * kPitch * kChunkBytes, from_w[i] + k, true);
      barrier_arrive_after_copies(&ring.full[stage]);
    };
    const auto copy_x = [&](int step) {
      if (t != 0) return;
      const int stage = step % N::kStages, bytes = own_groups * kGroupBytes;
      barrier_expect(&ring.full[stage], bytes);
      copy_bytes(memory + stage * N::kStage, packed_chunk(p, groups, chunk_of(step)) + first_row / 8 * kGroupBytes,
                 bytes, &ring.full[stage]);
    };
    const int steps = kParts * chunks, first = min(steps, N::kStages);
    for (int step = 0; step < first; ++step) copy_w(step);
    decoding::wait_for_launcher();
    for (int step = 0; step < first; ++step) copy_x(step);
    if (t < N::kRowsX && first_row + t < rows) {
      scales[t] = p.norm_weight ? __ldcg(p.scales + first_row + t) : 1;
      if constexpr (MODE == Mode::pages) places[t] = place_of(p.pages, first_row + t);
    }
    for (int step = first; step < steps; ++step) {
      ring.wait_empty(step);
      copy_w(step);
      copy_x(step);
    }
  } else {
    const uint32_t own = N::kChunkX + own_w();
    float sum[N::kSums] = {};
    const auto end_part = [&] {
#pragma unroll
      for (int n = 0; n < N::kSums; ++n) total[n] += sum[n];
    };
    int step = 0;
    Operands w;
    const uint32_t zero = unknown_zero(p);
    for (int part = 0; part < kParts; ++part) {
      for (int i = 0; i < chunks; ++i, ++step) {
        const uint32_t stage = stages + step % N::kStages * N::kStage;
        ring.wait_full(step);
        const Fragments next(stage + own);  // while the chunk in front is multiplied
        finish_products(sum);
        w.hold();
        w.set(next, zero);
        __syncwarp();
        if (step > 0 && threadIdx.x % 32 == 0) barrier_arrive(&ring.empty[(step - 1) % N::kStages]);
        if (i == 0) end_part();  // the one in front, or zeros
        multiply_chunk<T>(sum, w, stage, i > 0);
      }
    }
    finish_products(sum);
    end_part();
  }
  __syncthreads();  // the ring is used up, and scales and places are there
  if (threadIdx.x < N::kConsumers) store_sums(total, reinterpret_cast<float*>(memory), N::kStride);
  finish_tile<T, N, MODE>(p, first_row, first_column, places, reinterpret_cast<const float*>(memory),
                          [&](const Quad& quad) { return scales[quad.m]; });
}

// A cluster's tile, and what its blocks add up of it.
constexpr int kTile = 64, kTileBytes = kTile * kChunkBytes, kTileStride = kTile + 4, kTileThreads = 128;
constexpr int kOwnRows = kTile / kParts;
constexpr int kAtOnce = 12;  // chunks of x that a lane asks for before it stores one

template <typename T>
__global__ void __launch_bounds__(kTileThreads) multiply_parts(const __grid_constant__ FewRows p) {
  using namespace kernels::cuda;
  extern __shared__ __align__(128) char memory[];
  char* const own = own_memory(memory);
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, g = lane / 4, c = lane % 4;
  const int in = static_cast<int>(p.in), rows = static_cast<int>(p.rows);
  const int part = blockIdx.x, first_column = blockIdx.y * kTile, first_row = blockIdx.z * kTile;
  const int chunks = in / (kParts * kChunk);
  constexpr int kSpan = kParts * kChunk;  // from a part's chunk to the next one
  const uint32_t x_at = shared_address(own), w_at = x_at + chunks * kTileBytes;

  const auto w_row = [&](int row) {
    return static_cast<const T*>(p.W) + static_cast<int64_t>(row_in_tile<Mode::plain>(p, first_column, row)) * in;
  };
  if (threadIdx.x < kOwnRows) prefetch_bytes(w_row(part * kOwnRows + threadIdx.x), 2 * in);  // the cluster all rows
  constexpr int kPitch = kTileThreads / kPieces;
  for (int row = threadIdx.x / kPieces; row < kTile; row += kPitch) {
    const int piece = threadIdx.x % kPieces;
    const T* const from = w_row(row) + part * kChunk + piece * 8;
    const uint32_t to = w_at + row * kChunkBytes + piece * 16;
    for (int i = 0; i < chunks; ++i) copy_async(to + i * kTileBytes, from + i * kSpan, true);
  }
  copies_commit();
  decoding::let_next_start();
  decoding::wait_for_launcher();

  // A warp has two groups of x's rows; lanes are a group's rows and their pieces.
  constexpr int kGroups = kTile / 8 / (kTileThreads / 32);
  const T* from_x[kGroups];
#pragma unroll
  for (int n = 0; n < kGroups; ++n) {
    const int row = min(first_row + (warp * kGroups + n) * 8 + g, rows - 1);
    from_x[n] = static_cast<const T*>(p.x) + row * p.x_stride + part * kChunk + 8 * c;
  }
  for (int first = 0; first < chunks; first += kAtOnce) {
    uint4 x[kAtOnce][kGroups];
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i) {
#pragma unroll
      for (int n = 0; n < kGroups; ++n) {
        if (first + i < chunks) x[i][n] = __ldcg(reinterpret_cast<const uint4*>(from_x[n] + (first + i) * kSpan));
      }
    }
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i) {
#pragma unroll
      for (int n = 0; n < kGroups; ++n) {
        if (first + i < chunks) {
          store_packed(own + (first + i) * kTileBytes + (warp * kGroups + n) * kGroupBytes, g, c, x[i][n]);
        }
      }
    }
  }
  copies_wait<0>();
  fence_for_bulk_copies();  // wgmma reads what was stored
  __syncthreads();

  float sum[kTile / 2] = {};
  Operands w;
  const uint32_t zero = unknown_zero(p);
#pragma unroll 1
  for (int i = 0; i < chunks; ++i) {
    const Fragments next(w_at + i * kTileBytes + own_w());
    finish_products(sum);
    w.hold();
    w.set(next, zero);
    multiply_chunk<T>(sum, w, x_at + i * kTileBytes, true);
  }
  finish_products(sum);
  __syncthreads();  // W and x are used up
  auto* const products = reinterpret_cast<float*>(own);
  store_sums(sum, products, kTileStride);
  cluster_arrive();
  // A block adds the parts of its rows of x: four columns a thread.
  static_assert(kOwnRows * kTile == 4 * kTileThreads);
  const Quad quad = quad_of<Mode::plain, kTile, kOwnRows>(p, threadIdx.x, first_row + part * kOwnRows, first_column);
  Beside beside{};
  if (quad.there) beside.add = residual(p, quad);
  cluster_wait();
  float4 all{};
#pragma unroll
  for (int from = 0; from < kParts; ++from) {
    all = all + *reinterpret_cast<const float4*>(of_block(products, from) + (part * kOwnRows + quad.m) * kTileStride +
                                                 quad.r);
  }
  cluster_arrive();
  if (quad.there) finish<T, Mode::plain>(p, quad, beside, [&](int) { return all; });
  cluster_wait();  // others read this block's products
}

template <typename T, Mode MODE>
void multiply_by_blocks(const FewRows& p, int multiprocessors, cudaStream_t stream) {
  start_weighing<T, true>(p, stream);
  bool done = false;
  const auto unless_done = [&](auto shape, bool any) {
    using N = decltype(shape);
    const dim3 grid(ceil_div(p.out, columns_of_tile(MODE, N::kRowsW)), ceil_div(p.rows, N::kRowsX));
    if (done || (!any && grid.x * grid.y > static_cast<unsigned>(multiprocessors))) return;
    decoding::start<multiply_wide<T, N, MODE>>(p, grid, N::kThreads, N::kBytes, true, stream);
    done = true;
  };
  // The smallest blocks that all run at once.
  unless_done(Wide<1, 64>{}, false);
  unless_done(Wide<2, 64>{}, false);
  unless_done(Wide<2, 128>{}, true);
}

}  // namespace step

bool few_rows_hopper(const FewRows& p, cudaStream_t stream) {
  using namespace step;
  if (p.rows < kLeastRows || p.in % (kParts * kChunk) != 0 || p.out % 4 != 0) return false;
  if (decoding::gpu_attribute(cudaDevAttrComputeCapabilityMajor) != 9) return false;
  const int multiprocessors = decoding::gpu_attribute(cudaDevAttrMultiProcessorCount);
  const auto of_type = [&](auto type) {
    using T = decltype(type);
    if (!p.y) return multiply_by_blocks<T, Mode::pages>(p, multiprocessors, stream);
    if (p.swiglu) return multiply_by_blocks<T, Mode::swiglu>(p, multiprocessors, stream);
    const dim3 grid(kParts, ceil_div(p.out, kTile), ceil_div(p.rows, kTile));
    const auto chunks = static_cast<int>(p.in / (kParts * kChunk)),
               bytes = std::max(2 * chunks * kTileBytes, kTile * kTileStride * 4);
    if (p.norm_weight || bytes > kRingBytes || grid.y * grid.z > static_cast<unsigned>(multiprocessors)) {
      return multiply_by_blocks<T, Mode::plain>(p, multiprocessors, stream);
    }
    decoding::start<multiply_parts<T>>(p, grid, kTileThreads, bytes, true, stream, kParts);
  };
  p.type == DType::bf16 ? of_type(__nv_bfloat16{}) : of_type(__half{});
  return true;
}

}  // namespace lazy::ops::cuda
