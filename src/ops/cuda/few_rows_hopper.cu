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
#include "ops/cuda/load_once.cuh"
#include "ops/cuda/step_ptx.cuh"

namespace lazy::ops::cuda {

namespace step {

namespace decoding = kernels::cuda::decoding;
using kernels::cuda::wgmma_wait;

constexpr int kLeastRows = 65;
constexpr int kRingBytes = 180 << 10;  // with all else of a block's within kSharedPercent of a multiprocessor's
// Of a multiprocessor: all, what blocks have by kSharedPercent, and what the system takes for each.
constexpr int kSharedOfAll = 228 << 10, kSharedOfBlocks = 196 << 10, kSharedOfSystem = 1 << 10;
constexpr int64_t kMostPrefetched = 8 << 20;  // numbers of W

// A lane's 16 bytes of W.
struct Fragments {
  uint4 low, high;  // of row lane / 4 of a warp's 16, and 8 rows further
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

// The grid's threads t = 0 ... 127 of every block ask the L2 cache for the next product's W. Its own blocks could not
// early enough: they find no room beside this kernel's.
__device__ inline void prefetch_next(const FewRows& p, int t) {
  constexpr int kPiece = 2048;
  if (p.next_bytes > 2 * kMostPrefetched) return;
  const int64_t blocks = gridDim.x * gridDim.y, block = blockIdx.y * gridDim.x + blockIdx.x;
  for (int64_t at = (t * blocks + block) * kPiece; at < p.next_bytes; at += 128 * blocks * kPiece) {
    const auto bytes = static_cast<int>(min(p.next_bytes - at, int64_t{kPiece})) & ~15;
    if (bytes > 0) kernels::cuda::prefetch_bytes(static_cast<const char*>(p.next_W) + at, bytes);
  }
}

// A tile of 64 rows of W for each of WARPGROUPS by ROWS rows of x, and a warpgroup that copies x. AHEAD chunks of W are
// on their way to a warpgroup's registers; a stage of the ring has as many chunks of x. GROUP of them are multiplied
// before their sums are waited for; a part is a multiple of it.
template <int WARPGROUPS_, int ROWS, int AHEAD_, int GROUP_>
struct Wide {
  static constexpr int WARPGROUPS = WARPGROUPS_, AHEAD = AHEAD_, GROUP = GROUP_;
  static constexpr int kConsumers = 128 * WARPGROUPS, kThreads = kConsumers + 128;
  static constexpr int kRowsW = 64 * WARPGROUPS, kRowsX = ROWS, kSums = ROWS / 2;
  static constexpr int kChunkX = kRowsX * kChunkBytes, kStage = AHEAD * kChunkX, kStages = kRingBytes / kStage;
  static constexpr int kStride = kRowsW + 4, kBytes = std::max(kStages * kStage, kRowsX*kStride * 4);
  // Registers of the copying warpgroup that the others take.
  static constexpr bool kGives = WARPGROUPS > 1;
  static constexpr int kLeft = 40, kTaken = 232;
  static_assert(kParts % AHEAD == 0 && AHEAD % GROUP == 0 && WARPGROUPS <= 2);
};

template <typename T, typename N, Mode MODE>
__global__ void __launch_bounds__(N::kThreads, 1) multiply_wide(const __grid_constant__ FewRows p) {
  using namespace kernels::cuda;
  extern __shared__ __align__(128) char memory[];
  __shared__ Pipeline<N::kStages> ring;
  __shared__ Place places[MODE == Mode::pages ? N::kRowsX : 1];
  __shared__ float scales[N::kRowsX];
  constexpr int AHEAD = N::AHEAD, GROUP = N::GROUP;
  const int in = static_cast<int>(p.in), rows = static_cast<int>(p.rows), chunks = in / (kParts * kChunk);  // of a part
  // Neighbours have the same rows of W, so that the second one finds them in the L2 cache.
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
    // Blocks that do not all run at once would bring more to the L2 cache than it keeps.
    if (p.out * in <= kMostPrefetched) {
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
      if constexpr (MODE == Mode::pages) places[t] = place_of(p.pages, first_row + t);
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
  int part = 0, chunk_ahead = 0;  // that come next
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
  int chunk = 0;  // of its part
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
  meet_threads<N::kThreads>();  // the ring is used up, and scales and places are there
  store_sums(total, reinterpret_cast<float*>(memory), N::kStride);
  finish_tile<T, N, MODE, N::kConsumers>(p, first_row, first_column, places, reinterpret_cast<const float*>(memory),
                                         [&](const Quad& quad) { return scales[quad.m]; });
}

// Of a cluster and of its blocks.
struct Parts {
  static constexpr int kRowsW = 128, kRowsX = 64, kStride = kRowsW + 4, kThreads = 2 * kRowsW;
  static constexpr int kBlocks = 3;  // a multiprocessor
  static constexpr int kOwnRows = kRowsX / kParts, kChunkX = kRowsX * kChunkBytes;
  static constexpr int kAhead = 4;   // chunks of W on their way to registers
  static constexpr int kAtOnce = 6;  // chunks of x that a lane asks for before it stores one
  static int bytes(int chunks) { return std::max(chunks * kChunkX, kRowsX * kStride * 4); }
  static_assert(kRowsX / 8 == kThreads / 32 && kOwnRows * kRowsW == 4 * kThreads);
};

template <typename T>
__global__ void __launch_bounds__(Parts::kThreads, Parts::kBlocks) multiply_parts(const __grid_constant__ FewRows p) {
  using namespace kernels::cuda;
  using N = Parts;
  extern __shared__ __align__(128) char memory[];
  char* const own = own_memory(memory);
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, g = lane / 4, c = lane % 4;
  const int in = static_cast<int>(p.in), rows = static_cast<int>(p.rows);
  const int part = blockIdx.x, first_column = blockIdx.y * N::kRowsW, first_row = blockIdx.z * N::kRowsX;
  const int chunks = in / (kParts * kChunk);
  constexpr int kSpan = kParts * kChunk;  // from a part's chunk to the next one

  const auto w_row = [&](int row) {
    return static_cast<const T*>(p.W) + static_cast<int64_t>(row_in_tile<Mode::plain>(p, first_column, row)) * in;
  };
  constexpr int kPrefetched = N::kRowsW / kParts;  // rows, of a block: the cluster has all
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

  // A warp has a group of x's rows; lanes are its rows and their pieces.
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
  fence_for_bulk_copies();  // wgmma reads what was stored
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
  __syncthreads();  // x is used up
  auto* const products = reinterpret_cast<float*>(own);
  store_sums(sum, products, N::kStride);
  cluster_arrive();
  // A block adds the parts of its rows of x: four columns a thread.
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
  cluster_wait();  // others read this block's products
}

template <typename T, Mode MODE>
void multiply_by_blocks(const FewRows& p, int multiprocessors, cudaStream_t stream) {
  start_weighing<T, true>(p, stream);
  const auto of_group = [&]<int GROUP>() {
    bool done = false;
    const auto unless_done = [&](auto shape, bool any) {
      using N = decltype(shape);
      const dim3 grid(ceil_div(p.rows, N::kRowsX), ceil_div(p.out, columns_of_tile(MODE, N::kRowsW)));
      if (done || (!any && 4 * grid.x * grid.y > 3 * static_cast<unsigned>(multiprocessors))) return;
      decoding::start<multiply_wide<T, N, MODE>>(p, grid, N::kThreads, N::kBytes, true, stream);
      done = true;
    };
    // The smallest blocks that leave a quarter of the multiprocessors: all would ask the L2 cache for more than it
    // gives.
    unless_done(Wide<1, 64, 8, GROUP>{}, false);
    unless_done(Wide<2, 64, 4, GROUP>{}, false);
    unless_done(Wide<2, 128, 4, GROUP>{}, true);
  };
  const int64_t chunks = p.in / (kParts * kChunk);
  if (chunks % 4 == 0) return of_group.template operator()<4>();
  chunks % 2 == 0 ? of_group.template operator()<2>() : of_group.template operator()<1>();
}

// False, and nothing is done, where the blocks of all clusters would not run at once.
template <typename T>
bool multiply_by_clusters(const FewRows& p, int multiprocessors, cudaStream_t stream) {
  const dim3 grid(kParts, ceil_div(p.out, Parts::kRowsW), ceil_div(p.rows, Parts::kRowsX));
  const int bytes = Parts::bytes(static_cast<int>(p.in / (kParts * kChunk)));
  // A multiprocessor has as few blocks as it can: clusters fill some multiprocessors before they go to others, unless
  // their blocks ask for more shared memory than they use. Not every multiprocessor is in reach of a whole cluster.
  for (int blocks = 1; blocks <= Parts::kBlocks; ++blocks) {
    const int most = kSharedOfBlocks / blocks - kSharedOfSystem;
    if (bytes > most) return false;
    if (8 * kParts * grid.y * grid.z > 7 * static_cast<unsigned>(blocks * multiprocessors)) continue;
    const int asked = std::max(bytes, kSharedOfAll / (blocks + 1) - kSharedOfSystem + 128);
    decoding::start<multiply_parts<T>>(p, grid, Parts::kThreads, asked, true, stream, kParts);
    return true;
  }
  return false;
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
    if (!p.norm_weight && multiply_by_clusters<T>(p, multiprocessors, stream)) return;
    multiply_by_blocks<T, Mode::plain>(p, multiprocessors, stream);
  };
  p.type == DType::bf16 ? of_type(__nv_bfloat16{}) : of_type(__half{});
  return true;
}

}  // namespace lazy::ops::cuda
