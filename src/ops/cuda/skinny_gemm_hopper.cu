// Skinny GEMM with more than 64 rows of x on Hopper (sm_90). The results are bitwise equal to skinny_gemm.cu, because
// the sums of wgmma are equal to the sums of mma.sync. Rows of W are operand A, which is in registers. Rows of x are
// operand B, which is in shared memory, where wgmma requires core matrices of 8 rows by 16 bytes. A chunk of 8 rows of
// x consists of four core matrices: matrix m contains the elements 8 c + 2 m + {0, 1}, c = 0..3, of every row. Two of
// these matrices contain the same elements that one mma instruction in skinny_gemm.cu multiplies, where each lane uses
// 16 contiguous bytes of a row.
//
// If the product has only few tiles, each tile is computed by a cluster of kParts blocks, one block per part of the
// inner dimension. Otherwise each block processes all parts in succession, and a separate kernel first multiplies x by
// the norm weights and packs it.
#include <algorithm>

#include "attention/cuda/decode_memory.cuh"
#include "attention/cuda/decode_params.h"
#include "attention/cuda/hopper.cuh"
#include "ops/cuda/fast_weights_ptx.cuh"
#include "ops/cuda/load_once.cuh"
#include "ops/cuda/skinny_gemm_norm.cuh"
#include "ops/cuda/step_ptx.cuh"

namespace lazy::ops::cuda {

namespace step {

namespace decoding = kernels::cuda::decoding;
using kernels::cuda::wgmma_wait;

constexpr int kMinHopperRows = 65;
// Size of the ring buffer in bytes. Together with the other shared memory of a block, it is at most kSharedPercent
// (decode_params.h) of the shared memory of a multiprocessor.
constexpr int kRingBytes = 180 << 10;
// Shared memory of a multiprocessor in bytes: the total, the part that kSharedPercent leaves for blocks, and the part
// that the system reserves per block.
constexpr int kSharedOfAll = 228 << 10, kSharedOfBlocks = 196 << 10, kSharedOfSystem = 1 << 10;
constexpr int64_t kMaxPrefetched = 8 << 20;  // maximum number of elements of W that are prefetched

// The elements of W that a lane loads for one chunk: 16 bytes from each of two rows.
struct Fragments {
  uint4 low, high;  // `low`: row lane / 4 of the warp's 16 rows; `high`: row lane / 4 + 8
};
// The fragments in the order of two wgmma operands. wgmma reads its registers asynchronously, but the compiler does not
// know this. hold() must be called after the wgmma has finished; it prevents the compiler from reusing the registers
// earlier. `zero` is always 0, but the compiler cannot know this. If it knew, it would pass copies of the registers to
// wgmma, and hold() would not protect these copies.
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
__device__ inline uint32_t unknown_zero(const SkinnyGemm& p) { return __float_as_uint(p.eps) >> 31; }
// Multiplies one chunk, whose x is at shared memory address `x`. If goes_on is true, the result is added to `sum` (64
// rows of W by rows of x); otherwise it overwrites `sum`.
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
// Stores the accumulators `sum` as a matrix with one row per row of x and with row stride `stride`.
template <int SUMS>
__device__ void store_sums(const float (&sum)[SUMS], float* to, int stride) {
  const int lane = threadIdx.x % 32, row = threadIdx.x / 32 * 16 + lane / 4;
#pragma unroll
  for (int n = 0; n < SUMS; ++n) {
    to[(n / 4 * 8 + lane % 4 * 2 + n % 2) * stride + row + n / 2 % 2 * 8] = sum[n];
  }
}

// Prefetches W of the next product to the L2 cache, with the threads t = 0 ... 127 of every block of the grid. The next
// kernel could not prefetch it early enough, because its blocks do not fit on the multiprocessors while this kernel
// runs.
__device__ inline void prefetch_next(const SkinnyGemm& p, int t) {
  constexpr int kPiece = 2048;
  if (p.next_bytes > 2 * kMaxPrefetched) return;
  const int64_t blocks = gridDim.x * gridDim.y, block = blockIdx.y * gridDim.x + blockIdx.x;
  for (int64_t at = (t * blocks + block) * kPiece; at < p.next_bytes; at += 128 * blocks * kPiece) {
    const auto bytes = static_cast<int>(min(p.next_bytes - at, int64_t{kPiece})) & ~15;
    if (bytes > 0) kernels::cuda::prefetch_bytes(static_cast<const char*>(p.next_W) + at, bytes);
  }
}

// A block has WARPGROUPS warpgroups that compute one tile of 64 rows of W by ROWS rows of x each, and one more
// warpgroup that copies x. Each computing warpgroup has AHEAD chunks of W in flight to its registers; a stage of the
// ring buffer has the same number of chunks of x. The products of GROUP chunks are issued before the kernel waits for
// their sums. The number of chunks of a part must be a multiple of GROUP.
template <int WARPGROUPS_, int ROWS, int AHEAD_, int GROUP_>
struct Wide {
  static constexpr int WARPGROUPS = WARPGROUPS_, AHEAD = AHEAD_, GROUP = GROUP_;
  static constexpr int kConsumers = 128 * WARPGROUPS, kThreads = kConsumers + 128;
  static constexpr int kRowsW = 64 * WARPGROUPS, kRowsX = ROWS, kSums = ROWS / 2;
  static constexpr int kChunkX = kRowsX * kChunkBytes, kStage = AHEAD * kChunkX, kStages = kRingBytes / kStage;
  static constexpr int kStride = kRowsW + 4, kBytes = std::max(kStages * kStage, kRowsX*kStride * 4);
  // Whether the copying warpgroup releases registers to the computing warpgroups. kLeft and kTaken are the numbers of
  // registers per thread that the copying warpgroup and the computing warpgroups then have.
  static constexpr bool kGives = WARPGROUPS > 1;
  static constexpr int kLeft = 40, kTaken = 232;
  static_assert(kParts % AHEAD == 0 && AHEAD % GROUP == 0 && WARPGROUPS <= 2);
};

template <typename T, typename N, Mode MODE>
__global__ void __launch_bounds__(N::kThreads, 1) multiply_wide(const __grid_constant__ SkinnyGemm p) {
  using namespace kernels::cuda;
  extern __shared__ __align__(128) char memory[];
  __shared__ Pipeline<N::kStages> ring;
  __shared__ TokenSlot places[MODE == Mode::pages ? N::kRowsX : 1];
  __shared__ float scales[N::kRowsX];
  constexpr int AHEAD = N::AHEAD, GROUP = N::GROUP;
  // `chunks` is the number of chunks per part.
  const int in = static_cast<int>(p.in), rows = static_cast<int>(p.rows), chunks = in / (kParts * kChunk);
  // Blocks with adjacent indices read the same rows of W. The first of them loads these rows to the L2 cache, and the
  // others find them there.
  const int first_row = blockIdx.x * N::kRowsX, first_column = blockIdx.y * columns_of_tile(MODE, N::kRowsW);
  const int stages = kParts * chunks / AHEAD;
  const auto w_row = [&](int row) {
    return static_cast<const T*>(p.W) + static_cast<int64_t>(row_in_tile<MODE>(p, first_column, row)) * in;
  };
  if (threadIdx.x == 0) {
    ring.init(N::kConsumers / 32);
    fence_barriers();
  }
  decoding::let_next_start();
  __syncthreads();
  if (threadIdx.x >= N::kConsumers) {
    if constexpr (N::kGives) dealloc_registers<N::kLeft>();
    const int t = threadIdx.x - N::kConsumers;
    // W is prefetched only if it is small. If W is large, the blocks of the grid do not all run at the same time, and
    // the prefetches would load more than the L2 cache can hold.
    if (p.out * in <= kMaxPrefetched) {
      for (int row = t; row < N::kRowsW; row += 128) prefetch_bytes(w_row(row), 2 * in);
      prefetch_next(p, t);
    }
    decoding::wait_for_launcher();
    const int groups = groups_of(rows), bytes = min(N::kRowsX / 8, groups - first_row / 8) * kGroupBytes;
    const char* const x = packed_chunk(p, groups, 0) + first_row / 8 * kGroupBytes;
    const auto copy_stage = [&](int n) {
      uint64_t* const full = &ring.full[n % N::kStages];
      barrier_expect(full, AHEAD * bytes);
      for (int i = 0; i < AHEAD; ++i) {
        const int step = n * AHEAD + i, chunk = step / chunks + step % chunks * kParts;
        copy_bytes(memory + n % N::kStages * N::kStage + i * N::kChunkX,
                   x + static_cast<int64_t>(chunk) * groups * kGroupBytes, bytes, full);
      }
    };
    const int first = min(stages, N::kStages);
    if (t == 0) {
      for (int n = 0; n < first; ++n) copy_stage(n);
    }
    if (t < N::kRowsX && first_row + t < rows) {
      scales[t] = p.norm_weight ? __ldcg(p.scales + first_row + t) : 1;
      if constexpr (MODE == Mode::pages) places[t] = token_slot(p.pages, first_row + t);
    }
    if (t == 0) {
      for (int n = first; n < stages; ++n) {
        ring.wait_empty(n);
        copy_stage(n);
      }
    }
    __syncwarp();
    arrive_threads<N::kThreads>();
    return;
  }
  if constexpr (N::kGives) alloc_registers<N::kTaken>();
  const int lane = threadIdx.x % 32, row = threadIdx.x / 32 * 16 + lane / 4;
  const T *const low = w_row(row) + lane % 4 * 8, *const high = w_row(row + 8) + lane % 4 * 8;
  Fragments w[AHEAD];
  int part = 0, chunk_ahead = 0;  // indices of the next load: the part, and the chunk in this part
  const auto load = [&](Fragments& to) {
    const int k = (part + chunk_ahead * kParts) * kChunk;
    load_once(to.low, low + k);
    load_once(to.high, high + k);
    if (++chunk_ahead == chunks) chunk_ahead = 0, ++part;
  };
#pragma unroll
  for (int s = 0; s < AHEAD; ++s) load(w[s]);
  float sum[N::kSums] = {}, total[N::kSums] = {};
  const uint32_t zero = unknown_zero(p), memory_at = shared_address(memory);
  int chunk = 0;  // index of the chunk in its part
#pragma unroll 1
  for (int n = 0; n < stages; ++n) {
    const uint32_t stage = memory_at + n % N::kStages * N::kStage;
#pragma unroll
    for (int first = 0; first < AHEAD; first += GROUP) {
      Operands operands[GROUP];
#pragma unroll
      for (int g = 0; g < GROUP; ++g) {
        operands[g].set(w[first + g], zero);
        if (n + 1 < stages) load(w[first + g]);
        if (first + g == 0) ring.wait_full(n);
        multiply_chunk<T>(sum, operands[g], stage + (first + g) * N::kChunkX, chunk + g > 0);
        if (g > 0) {
          wgmma_wait<1>();
          operands[g - 1].hold();
        }
      }
      finish_products(sum);
      operands[GROUP - 1].hold();
      chunk += GROUP;
      if (chunk == chunks) {
        chunk = 0;
#pragma unroll
        for (int i = 0; i < N::kSums; ++i) total[i] += sum[i];
      }
    }
    __syncwarp();
    if (lane == 0) barrier_arrive(&ring.empty[n % N::kStages]);
  }
  // Wait until the ring buffer has been consumed, and all scales and cache slots have been stored in shared memory.
  named_barrier<N::kThreads>();
  store_sums(total, reinterpret_cast<float*>(memory), N::kStride);
  finish_tile<T, N, MODE, N::kConsumers>(p, first_row, first_column, places, reinterpret_cast<const float*>(memory),
                                         [&](const Quad& quad) { return scales[quad.m]; });
}

// Constants of multiply_parts, in which a cluster of kParts blocks computes a tile.
struct ClusterParts {
  static constexpr int kRowsW = 128, kRowsX = 64, kStride = kRowsW + 4, kThreads = 2 * kRowsW;
  static constexpr int kBlocks = 3;  // minimum number of blocks per multiprocessor, for __launch_bounds__
  static constexpr int kOwnRows = kRowsX / kParts, kChunkX = kRowsX * kChunkBytes;
  static constexpr int kAhead = 4;   // number of chunks of W in flight to registers
  static constexpr int kAtOnce = 6;  // number of chunks of x that a lane loads before it stores the first one
  static int bytes(int chunks) { return std::max(chunks * kChunkX, kRowsX * kStride * 4); }
  static_assert(kRowsX / 8 == kThreads / 32 && kOwnRows * kRowsW == 4 * kThreads);
};

template <typename T>
__global__ void __launch_bounds__(ClusterParts::kThreads, ClusterParts::kBlocks)
    multiply_parts(const __grid_constant__ SkinnyGemm p) {
  using namespace kernels::cuda;
  using N = ClusterParts;
  extern __shared__ __align__(128) char memory[];
  char* const own = own_memory(memory);
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, g = lane / 4, c = lane % 4;
  const int in = static_cast<int>(p.in), rows = static_cast<int>(p.rows);
  const int part = blockIdx.x, first_column = blockIdx.y * N::kRowsW, first_row = blockIdx.z * N::kRowsX;
  const int chunks = in / (kParts * kChunk);
  constexpr int kSpan = kParts * kChunk;  // distance in elements between consecutive chunks of a part

  const auto w_row = [&](int row) {
    return static_cast<const T*>(p.W) + static_cast<int64_t>(row_in_tile<Mode::plain>(p, first_column, row)) * in;
  };
  // Rows of W that a block prefetches; the blocks of the cluster prefetch all rows of the tile.
  constexpr int kPrefetched = N::kRowsW / kParts;
  if (threadIdx.x < kPrefetched) prefetch_bytes(w_row(part * kPrefetched + threadIdx.x), 2 * in);
  const T *const low = w_row(warp * 16 + g) + part * kChunk + 8 * c, *const high = w_row(warp * 16 + g + 8) +
                                                                                   part * kChunk + 8 * c;
  Fragments w[N::kAhead];
  const auto load = [&](Fragments& to, int i) {
    load_once(to.low, low + i * kSpan);
    load_once(to.high, high + i * kSpan);
  };
#pragma unroll
  for (int i = 0; i < N::kAhead; ++i) {
    if (i < chunks) load(w[i], i);
  }
  decoding::let_next_start();
  decoding::wait_for_launcher();

  // Each warp processes a group of 8 rows of x. The lanes correspond to the rows and to the 16-byte pieces of each row.
  const T* const from_x =
      static_cast<const T*>(p.x) + min(first_row + warp * 8 + g, rows - 1) * p.x_stride + part * kChunk + 8 * c;
  for (int first = 0; first < chunks; first += N::kAtOnce) {
    uint4 x[N::kAtOnce];
#pragma unroll
    for (int i = 0; i < N::kAtOnce; ++i) {
      if (first + i < chunks) x[i] = __ldcg(reinterpret_cast<const uint4*>(from_x + (first + i) * kSpan));
    }
#pragma unroll
    for (int i = 0; i < N::kAtOnce; ++i) {
      if (first + i < chunks) store_packed(own + (first + i) * N::kChunkX + warp * kGroupBytes, g, c, x[i]);
    }
  }
  fence_for_bulk_copies();  // makes the stores visible to wgmma
  __syncthreads();

  float sum[N::kRowsX / 2] = {};
  Operands operands;
  const uint32_t zero = unknown_zero(p), x_at = shared_address(own);
#pragma unroll 1
  for (int first = 0; first < chunks; first += N::kAhead) {
#pragma unroll
    for (int s = 0; s < N::kAhead; ++s) {
      const int i = first + s;
      if (i >= chunks) break;
      operands.set(w[s], zero);
      if (i + N::kAhead < chunks) load(w[s], i + N::kAhead);
      multiply_chunk<T>(sum, operands, x_at + i * N::kChunkX, true);
      finish_products(sum);
      operands.hold();
    }
  }
  __syncthreads();  // wait until x has been consumed
  auto* const products = reinterpret_cast<float*>(own);
  store_sums(sum, products, N::kStride);
  cluster_arrive();
  // Each block adds the partial sums of the rows of x that it owns; each thread adds four columns.
  const Quad quad =
      quad_of<Mode::plain, N::kRowsW, N::kOwnRows>(p, threadIdx.x, first_row + part * N::kOwnRows, first_column);
  Beside beside{};
  if (quad.there) beside.add = residual(p, quad);
  cluster_wait();
  float4 all{};
#pragma unroll
  for (int from = 0; from < kParts; ++from) {
    all = all + *reinterpret_cast<const float4*>(of_block(products, from) + (part * N::kOwnRows + quad.m) * N::kStride +
                                                 quad.r);
  }
  cluster_arrive();
  if (quad.there) finish<T, Mode::plain>(p, quad, beside, [&](int) { return all; });
  cluster_wait();  // wait until the other blocks have read the products of this block
}

template <typename T, Mode MODE>
void multiply_by_blocks(const SkinnyGemm& p, int multiprocessors, cudaStream_t stream) {
  start_norm_weights<T, true>(p, stream);
  const auto of_group = [&]<int GROUP>() {
    bool done = false;
    const auto unless_done = [&](auto shape, bool any) {
      using N = decltype(shape);
      const dim3 grid(ceil_div(p.rows, N::kRowsX), ceil_div(p.out, columns_of_tile(MODE, N::kRowsW)));
      if (done || (!any && 4 * grid.x * grid.y > 3 * static_cast<unsigned>(multiprocessors))) return;
      decoding::start<multiply_wide<T, N, MODE>>(p, grid, N::kThreads, N::kBytes, true, stream);
      done = true;
    };
    // Use the smallest tiles whose grid occupies at most three quarters of the multiprocessors. If all multiprocessors
    // loaded data, the requests would exceed the bandwidth of the L2 cache.
    unless_done(Wide<1, 64, 8, GROUP>{}, false);
    unless_done(Wide<2, 64, 4, GROUP>{}, false);
    unless_done(Wide<2, 128, 4, GROUP>{}, true);
  };
  const int64_t chunks = p.in / (kParts * kChunk);
  if (chunks % 4 == 0) return of_group.template operator()<4>();
  chunks % 2 == 0 ? of_group.template operator()<2>() : of_group.template operator()<1>();
}

// Returns false without doing any work if the blocks of all clusters could not run at the same time.
template <typename T>
bool multiply_by_clusters(const SkinnyGemm& p, int multiprocessors, cudaStream_t stream) {
  const dim3 grid(kParts, ceil_div(p.out, ClusterParts::kRowsW), ceil_div(p.rows, ClusterParts::kRowsX));
  const int bytes = ClusterParts::bytes(static_cast<int>(p.in / (kParts * kChunk)));
  // Place as few blocks as possible on each multiprocessor. By default, the hardware fills some multiprocessors with
  // clusters before it uses the remaining ones; the blocks therefore request more shared memory than they use. Not
  // every multiprocessor can be part of a whole cluster.
  for (int blocks = 1; blocks <= ClusterParts::kBlocks; ++blocks) {
    const int most = kSharedOfBlocks / blocks - kSharedOfSystem;
    if (bytes > most) return false;
    if (8 * kParts * grid.y * grid.z > 7 * static_cast<unsigned>(blocks * multiprocessors)) continue;
    const int asked = std::max(bytes, kSharedOfAll / (blocks + 1) - kSharedOfSystem + 128);
    decoding::start<multiply_parts<T>>(p, grid, ClusterParts::kThreads, asked, true, stream, kParts);
    return true;
  }
  return false;
}

}  // namespace step

bool skinny_gemm_hopper(const SkinnyGemm& p, cudaStream_t stream) {
  using namespace step;
  if (p.rows < kMinHopperRows || p.in % (kParts * kChunk) != 0 || p.out % 4 != 0) return false;
  if (decoding::gpu_attribute(cudaDevAttrComputeCapabilityMajor) != 9) return false;
  const int multiprocessors = decoding::gpu_attribute(cudaDevAttrMultiProcessorCount);
  const auto of_type = [&](auto type) {
    using T = decltype(type);
    if (!p.y) return multiply_by_blocks<T, Mode::pages>(p, multiprocessors, stream);
    if (p.swiglu) return multiply_by_blocks<T, Mode::swiglu>(p, multiprocessors, stream);
    if (!p.norm_weight && multiply_by_clusters<T>(p, multiprocessors, stream)) return;
    multiply_by_blocks<T, Mode::plain>(p, multiprocessors, stream);
  };
  p.type == DType::bf16 ? of_type(__nv_bfloat16{}) : of_type(__half{});
  return true;
}

}  // namespace lazy::ops::cuda
