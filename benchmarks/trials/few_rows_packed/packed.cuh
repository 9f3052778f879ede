// Products of 64 to some hundred rows: W goes from global memory to registers as fragments (A), x lies in shared memory
// as core matrices of 8 rows by 16 bytes (B), of wgmma or of mma.sync, whose accumulators have the same places.
//
// Packed x: (chunks, groups of 8 rows, 4 core matrices, 8 rows, 16 bytes). Matrix 2 h + j of a chunk has of each row
// the numbers 8 c + 4 h + 2 j + {0, 1}, c = 0..3: in this order few_rows.cu's mma h has them in k = 8 j + 2 c + {0, 1}.
#pragma once
#include <algorithm>
#include <stdexcept>
#include <string>

#include "attention/cuda/decode_memory.cuh"
#include "attention/cuda/decode_params.h"
#include "attention/cuda/wgmma.cuh"
#include "ops/cuda/fast_weights_ptx.cuh"
#include "ops/cuda/few_rows.cuh"

namespace lazy::ops::cuda {

namespace step {

namespace decoding = kernels::cuda::decoding;

#ifdef EMULATED
inline void keep(const void*) {}
inline uint32_t arranged(uint32_t x, uint32_t zero) { return x ^ zero; }
template <int>
void give_registers() {}
template <int>
void take_registers() {}
using kernels::cuda::at_address;
struct Barrier {
  int16_t count, pending;
  uint32_t bytes_phase;  // bytes that are expected * 2 + phase; they may come before they are expected
  void check() {
    if (pending == 0 && bytes_phase / 2 == 0) bytes_phase ^= 1, pending = count;
  }
};
inline Barrier* barrier_at(uint32_t at) { return reinterpret_cast<Barrier*>(at_address(at)); }
inline void barrier_init(uint32_t at, int count) {
  *barrier_at(at) = {static_cast<int16_t>(count), static_cast<int16_t>(count), 0};
}
inline void barrier_expect(uint32_t at, uint32_t bytes) {
  Barrier* b = barrier_at(at);
  b->bytes_phase += 2 * bytes, --b->pending, b->check();
}
inline void barrier_landed(Barrier* b, uint32_t bytes) { b->bytes_phase -= 2 * bytes, b->check(); }
inline void barrier_wait(uint32_t at, uint32_t parity) {
  while ((barrier_at(at)->bytes_phase & 1) == parity) emulated::yield();
}
inline void barrier_arrive_at(uint32_t at, int rank) {
  Barrier* b = reinterpret_cast<Barrier*>(emulated::memory_of(at_address(at), rank));
  --b->pending, b->check();
}
inline void barriers_are_ready() {}
template <int CLUSTER>
void load_bulk(uint32_t to, const void* from, uint32_t bytes, uint32_t barrier) {
  if (CLUSTER == 1) {
    std::memcpy(at_address(to), from, bytes);
    barrier_landed(barrier_at(barrier), bytes);
    return;
  }
  for (int rank = 0; rank < CLUSTER; ++rank) {
    std::memcpy(emulated::memory_of(at_address(to), rank), from, bytes);
    barrier_landed(reinterpret_cast<Barrier*>(emulated::memory_of(at_address(barrier), rank)), bytes);
  }
}
inline void send_bulk(uint32_t to, uint32_t from, uint32_t bytes, uint32_t barrier, int rank) {
  std::memcpy(emulated::memory_of(at_address(to), rank), at_address(from), bytes);
  barrier_landed(reinterpret_cast<Barrier*>(emulated::memory_of(at_address(barrier), rank)), bytes);
}
inline void prefetch_bulk(const void*, uint32_t) {}
inline void wgmma_fence() {}
inline void wgmma_commit() {}
template <int LEFT>
void wgmma_wait() {}
inline void store_word(uint32_t to, uint32_t x) { std::memcpy(at_address(to), &x, 4); }
inline uint4 load_fragment(const void* from) { return *static_cast<const uint4*>(from); }
template <typename T, int F>
void multiply_group(float (&c)[F], const uint32_t (&a)[4], uint32_t b, int accumulate) {
  const int lane = threadIdx.x % 32;
  for (int n = 0; n < F / 4; ++n) {
    float sum[4];
    uint32_t x[2];
    for (int e = 0; e < 4; ++e) sum[e] = accumulate ? c[4 * n + e] : 0;
    for (int i = 0; i < 2; ++i) std::memcpy(&x[i], at_address(b + n * 512 + i * 128 + lane * 4), 4);
    kernels::cuda::mma<T>(sum, a, x[0], x[1]);
    for (int e = 0; e < 4; ++e) c[4 * n + e] = sum[e];
  }
}
#else
// Not to be computed again where it is used.
template <typename X>
__device__ void keep(X*& x) {
  asm volatile("" : "+l"(x));
}
__device__ inline uint32_t arranged(uint32_t x, uint32_t zero) {
  uint32_t y;
  asm volatile("xor.b32 %0, %1, %2;" : "=r"(y) : "r"(x), "r"(zero));
  return y;
}
template <int COUNT>
__device__ void give_registers() {
  asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(COUNT));
}
template <int COUNT>
__device__ void take_registers() {
  asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(COUNT));
}
__device__ inline void barrier_init(uint32_t at, int count) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(at), "r"(count) : "memory");
}
__device__ inline void barrier_expect(uint32_t at, uint32_t bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(at), "r"(bytes) : "memory");
}
// Ends the kernel with an error where it would wait forever (bench only).
__device__ inline void barrier_wait(uint32_t at, uint32_t parity) {
  for (int n = 0;; ++n) {
    uint32_t done;
    asm volatile(
        "{.reg .pred p; mbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2; selp.u32 %0, 1, 0, p;}"
        : "=r"(done)
        : "r"(at), "r"(parity)
        : "memory");
    if (done) return;
    if (n > 200000) asm volatile("trap;");
  }
}
__device__ inline void barrier_arrive_at(uint32_t at, int rank) {
  asm volatile(
      "{.reg .b32 r; mapa.shared::cluster.u32 r, %0, %1; mbarrier.arrive.shared::cluster.b64 _, [r];}" ::"r"(
          at),
      "r"(rank)
      : "memory");
}
__device__ inline void barriers_are_ready() {
  asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
}
// To the same place of all blocks of the cluster.
template <int CLUSTER>
__device__ void load_bulk(uint32_t to, const void* from, uint32_t bytes, uint32_t barrier) {
  if constexpr (CLUSTER == 1) {
    asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(to),
                 "l"(__cvta_generic_to_global(from)), "r"(bytes), "r"(barrier)
                 : "memory");
  } else {
    asm volatile(
        "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster [%0], [%1], %2, [%3], "
        "%4;" ::"r"(to),
        "l"(__cvta_generic_to_global(from)), "r"(bytes), "r"(barrier), "h"(static_cast<uint16_t>((1 << CLUSTER) - 1))
        : "memory");
  }
}
__device__ inline void send_bulk(uint32_t to, uint32_t from, uint32_t bytes, uint32_t barrier, int rank) {
  asm volatile(
      "{.reg .b32 t, b; mapa.shared::cluster.u32 t, %0, %4; mapa.shared::cluster.u32 b, %3, %4; "
      "cp.async.bulk.shared::cluster.shared::cta.mbarrier::complete_tx::bytes [t], [%1], %2, [b];}" ::"r"(to),
      "r"(from), "r"(bytes), "r"(barrier), "r"(rank)
      : "memory");
}
__device__ inline void prefetch_bulk(const void* from, uint32_t bytes) {
  asm volatile("cp.async.bulk.prefetch.L2.global [%0], %1;" ::"l"(__cvta_generic_to_global(from)), "r"(bytes));
}
__device__ inline void wgmma_fence() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
__device__ inline void wgmma_commit() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }
template <int LEFT>
__device__ void wgmma_wait() {
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(LEFT) : "memory");
}
__device__ inline void store_word(uint32_t to, uint32_t x) {
  asm volatile("st.shared.u32 [%0], %1;" ::"r"(to), "r"(x) : "memory");
}
// volatile: issued where it stands.
__device__ inline uint4 load_fragment(const void* from) {
  uint4 x;
  asm volatile("ld.global.nc.L2::256B.v4.u32 {%0, %1, %2, %3}, [%4];"
               : "=r"(x.x), "=r"(x.y), "=r"(x.z), "=r"(x.w)
               : "l"(from));
  return x;
}
template <typename T, int F>
__device__ void multiply_group(float (&c)[F], const uint32_t (&a)[4], uint32_t b, int accumulate) {
  const uint64_t matrices = uint64_t{(b & 0x3FFFF) >> 4} | uint64_t{128 >> 4} << 16 | uint64_t{512 >> 4} << 32;
  kernels::cuda::wgmma<T, 0>(c, a, matrices, accumulate);
}
#endif

struct Packed {
  FewRows p;
  const void* x = nullptr;  // packed
  void* y = nullptr;        // packed, for swiglu; null: p.y
  int groups = 0;           // of 8 rows, of packed matrices
  uint32_t zero = 0;        // what the compiler must not know
};
constexpr int kGroupBytes = 8 * 2 * kChunk;  // of a chunk

// The place of number 2 i, 2 i + 1 of a row's piece c of 8 in a group of a chunk.
__device__ inline int word_in_group(int row, int c, int i) { return i * 128 + row % 8 * 16 + c * 4; }

template <typename T>
__device__ void store_packed(void* to, int groups, int row, int piece, const uint4& x) {
  auto* const at = static_cast<char*>(to) + (static_cast<int64_t>(piece / 4) * groups + row / 8) * kGroupBytes;
  *reinterpret_cast<uint32_t*>(at + word_in_group(row, piece % 4, 0)) = x.x;
  *reinterpret_cast<uint32_t*>(at + word_in_group(row, piece % 4, 1)) = x.y;
  *reinterpret_cast<uint32_t*>(at + word_in_group(row, piece % 4, 2)) = x.z;
  *reinterpret_cast<uint32_t*>(at + word_in_group(row, piece % 4, 3)) = x.w;
}

// few_rows_tiles.cu's weigh_rows, packed. Without weights x is packed only.
constexpr int kPackThreads = 128;
template <typename T>
__global__ void __launch_bounds__(kPackThreads) weigh_packed(const __grid_constant__ Packed q) {
  const FewRows& p = q.p;
  decoding::let_next_start();
  decoding::wait_for_launcher();
  const int lane = threadIdx.x % 32, in = static_cast<int>(p.in);
  const int row = blockIdx.x * (kPackThreads / 32) + threadIdx.x / 32;
  if (row >= p.rows) return;
  const auto* const from = reinterpret_cast<const uint4*>(static_cast<const T*>(p.x) + row * p.x_stride);
  constexpr int kAtOnce = 4;
  float squares = 0;
  for (int first = lane; first < in / 8; first += 32 * kAtOnce) {
    uint4 x[kAtOnce];
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i) {
      const int n = first + 32 * i;
      if (n < in / 8) x[i] = __ldcg(from + n);
    }
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i) {
      const int n = first + 32 * i;
      if (n >= in / 8) continue;
      if (p.norm_weight) {
        const auto* const weights = reinterpret_cast<const float4*>(p.norm_weight) + 2 * n;
        x[i] = weigh<T>(x[i], __ldg(weights), __ldg(weights + 1), squares);
      }
      store_packed<T>(const_cast<void*>(q.x), q.groups, row, n, x[i]);
    }
  }
  if (!p.norm_weight) return;
  squares += __shfl_xor_sync(~0u, squares, 1);
  squares += __shfl_xor_sync(~0u, squares, 2);
  float all = 0;
  for (int part = 0; part < kParts; ++part) all += __shfl_sync(~0u, squares, 4 * part);
  if (lane == 0) p.scales[row] = 1 / sqrtf(all / static_cast<float>(in) + p.eps);
}

// A warpgroup's tile is 64 rows of W by ROWS of x. With WGMMA a warp has 16 by ROWS of it, else 32 by ROWS / 2.
template <bool WGMMA_, int ROWS_>
struct Tile {
  static constexpr bool WGMMA = WGMMA_;
  static constexpr int ROWS = ROWS_, TILES = WGMMA ? 1 : 2, GROUPS = ROWS / (WGMMA ? 8 : 16);
  static constexpr int kSums = 4 * TILES * GROUPS;
  __device__ static int first_w(int warp) { return WGMMA ? warp * 16 : warp / 4 * 64 + warp % 2 * 32; }  // of the block
  __device__ static int first_x(int warp) { return WGMMA ? 0 : warp % 4 / 2 * (ROWS / 2); }
  // Loaded rows' words in the order of operands, whose registers are neighbours. zero: 0, which the compiler does not
  // know, else it copies words as soon as they are loaded, and waits for them there.
  using Operands = uint32_t[TILES][2][4];
  __device__ static void arrange(Operands& a, const uint4 (&w)[TILES][2], uint32_t zero) {
#pragma unroll
    for (int t = 0; t < TILES; ++t) {
      const uint32_t from[2][4] = {{w[t][0].x, w[t][1].x, w[t][0].y, w[t][1].y},
                                   {w[t][0].z, w[t][1].z, w[t][0].w, w[t][1].w}};
#pragma unroll
      for (int n = 0; n < 8; ++n) a[t][n / 4][n % 4] = arranged(from[n / 4][n % 4], zero);
    }
  }
  // A chunk of x at `b`, a its W. FIRST: of a part.
  template <typename T>
  __device__ static void multiply(float (&sum)[kSums], const Operands& a, uint32_t b, int warp, bool first) {
    if constexpr (WGMMA) {
      multiply_group<T>(sum, a[0][0], b, !first);
      multiply_group<T>(sum, a[0][1], b + 256, 1);
    } else {
      const int lane = threadIdx.x % 32;
      b += first_x(warp) / 8 * kGroupBytes + lane * 16;
#pragma unroll
      for (int n = 0; n < GROUPS; ++n) {
        uint32_t x[4];
        kernels::cuda::load_matrices(x, b + n * kGroupBytes);
#pragma unroll
        for (int t = 0; t < TILES; ++t) {
          float(&s)[4] = *reinterpret_cast<float(*)[4]>(&sum[(t * GROUPS + n) * 4]);
          if (first) s[0] = s[1] = s[2] = s[3] = 0;
          kernels::cuda::mma<T>(s, a[t][0], x[0], x[1]);
          kernels::cuda::mma<T>(s, a[t][1], x[2], x[3]);
        }
      }
    }
  }
  // To (ROWS, stride).
  __device__ static void store(const float (&sum)[kSums], float* to, int stride, int warp, int lane) {
    const int g = lane / 4, c = lane % 4;
#pragma unroll
    for (int t = 0; t < TILES; ++t) {
#pragma unroll
      for (int n = 0; n < GROUPS; ++n) {
#pragma unroll
        for (int e = 0; e < 4; ++e) {
          to[(first_x(warp) + n * 8 + 2 * c + e % 2) * stride + first_w(warp) + t * 16 + g + e / 2 * 8] =
              sum[(t * GROUPS + n) * 4 + e];
        }
      }
    }
  }
};

// The row of W of a block's row r: a pair's two rows are eight apart in a tile of 16.
template <Mode MODE>
__device__ int row_of_tile(const FewRows& p, int first_column, int r) {
  if constexpr (MODE == Mode::plain) {
    return min(first_column + r, static_cast<int>(p.out) - 1);
  } else {
    return row_of<MODE>(p, min(first_column + r / 16 * 8 + r % 8, static_cast<int>(p.out) - 1), r / 8 % 2);
  }
}

// WGS warpgroups, each with 64 rows of W; CLUSTER blocks, neighbours along W, share the copies of x. STAGES parts of x
// are in the ring, AHEAD chunks of W in registers. A part has PART chunks, of which a stage has CHUNKS.
template <bool WGMMA, int WGS_, int ROWS, int CLUSTER_, int STAGES_, int AHEAD_, int PART_ = 4, int CHUNKS_ = 4>
struct Wide {
  using Unit = Tile<WGMMA, ROWS>;
  static constexpr int WGS = WGS_, CLUSTER = CLUSTER_, STAGES = STAGES_, AHEAD = AHEAD_, PART = PART_, CHUNKS = CHUNKS_;
  // A producer warp; with more than one warpgroup a producer warpgroup, whose registers go to the others.
  static constexpr bool kGives = WGS > 1;
  static constexpr int kConsumers = 128 * WGS, kThreads = kConsumers + (kGives ? 128 : 32);
  static constexpr int kRowsW = 64 * WGS, kRowsX = ROWS, kStride = kRowsW + 4;
  static constexpr int kChunkX = ROWS * 2 * kChunk, kStage = CHUNKS * kChunkX;
  static constexpr int kBarriers = std::max(STAGES * kStage, kRowsX * kStride * 4);
  static constexpr int kBytes = kBarriers + 16 * STAGES;
  static constexpr int kBlocks = 1;
  static_assert(AHEAD % PART == 0 && PART % CHUNKS == 0 && kParts * PART % AHEAD == 0 && ROWS / 8 % CLUSTER == 0);
};

template <typename T, typename N, Mode MODE>
__global__ void __launch_bounds__(N::kThreads, N::kBlocks) multiply_wide(const __grid_constant__ Packed q) {
  extern __shared__ __align__(128) char memory[];
  char* const own = own_memory(memory);
  using Unit = typename N::Unit;
  const FewRows& p = q.p;
  constexpr int WGS = N::WGS, CLUSTER = N::CLUSTER, STAGES = N::STAGES, PART = N::PART, CHUNKS = N::CHUNKS,
                AHEAD = N::AHEAD, kSteps = kParts * PART, kSpan = kParts * PART / CHUNKS;
  constexpr bool kPairs = MODE != Mode::plain;
  constexpr int kColumns = kPairs ? N::kRowsW / 2 : N::kRowsW;
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, g = lane / 4, c = lane % 4;
  const int out = static_cast<int>(p.out), rows = static_cast<int>(p.rows), in = static_cast<int>(p.in);
  const int first_column = blockIdx.x * kColumns, first_row = blockIdx.y * N::kRowsX;
  const uint32_t ring = kernels::cuda::shared_address(own), full = ring + N::kBarriers, empty = full + 8 * STAGES;
  const auto chunk_of = [](int step) { return step / PART + step % PART * kParts; };  // parts one after the other
  const bool consumes = warp < 4 * WGS;

  if (threadIdx.x == 0) {
    for (int n = 0; n < STAGES; ++n) {
      barrier_init(full + 8 * n, 1);
      barrier_init(empty + 8 * n, CLUSTER * 4 * WGS);
    }
    barriers_are_ready();
  }
  decoding::let_next_start();
  if constexpr (CLUSTER > 1) cluster_arrive();
  const auto meet = [] {
    if constexpr (CLUSTER > 1) {
      cluster_wait();
    } else {
      __syncthreads();
    }
    decoding::wait_for_launcher();
  };
  auto* const products = reinterpret_cast<float*>(own);
  if (!consumes) {
    if constexpr (N::kGives) give_registers<40>();
    if (warp == 4 * WGS) {
      for (int r = lane; r < N::kRowsW; r += 32) {
        prefetch_bulk(static_cast<const T*>(p.W) + static_cast<int64_t>(row_of_tile<MODE>(p, first_column, r)) * in,
                      static_cast<uint32_t>(2 * in));
      }
    }
    meet();
    if (warp == 4 * WGS && lane == 0) {
      const int rank = CLUSTER == 1 ? 0 : static_cast<int>(blockIdx.x) % CLUSTER;
      constexpr uint32_t kSlice = N::kChunkX / CLUSTER;
      const char* const from = static_cast<const char*>(q.x) + first_row / 8 * kGroupBytes + rank * kSlice;
#pragma unroll 1
      for (int n = 0; n < kSpan; ++n) {
        const int stage = n % STAGES;
        if (n >= STAGES) barrier_wait(empty + 8 * stage, (n / STAGES - 1) & 1);
        barrier_expect(full + 8 * stage, N::kStage);
        for (int i = 0; i < CHUNKS; ++i) {
          load_bulk<CLUSTER>(ring + stage * N::kStage + i * N::kChunkX + rank * kSlice,
                             from + static_cast<int64_t>(chunk_of(n * CHUNKS + i)) * q.groups * kGroupBytes, kSlice,
                             full + 8 * stage);
        }
      }
    }
    __syncwarp();
    __syncthreads();
  } else {
    if constexpr (N::kGives) take_registers<232>();
    uint4 w[AHEAD][Unit::TILES][2];
    const T* from_w[Unit::TILES][2];
#pragma unroll
    for (int t = 0; t < Unit::TILES; ++t) {
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        const int r = row_of_tile<MODE>(p, first_column, Unit::first_w(warp) + t * 16 + h * 8 + g);
        from_w[t][h] = static_cast<const T*>(p.W) + static_cast<int64_t>(r) * in + 8 * c;
        keep(from_w[t][h]);
      }
    }
#pragma unroll
    for (int i = 0; i < AHEAD; ++i) {
#pragma unroll
      for (int t = 0; t < Unit::TILES; ++t) {
#pragma unroll
        for (int h = 0; h < 2; ++h) w[i][t][h] = load_fragment(from_w[t][h] + chunk_of(i) * kChunk);
      }
    }
    meet();
    float sum[Unit::kSums], total[Unit::kSums] = {};
    typename Unit::Operands operands[Unit::WGMMA ? 2 : 1];
    const auto release = [&](int n) {
      __syncwarp();
      if (lane < CLUSTER) barrier_arrive_at(empty + 8 * (n % STAGES), lane);
    };
    int stage = 0, phase = 0;
#pragma unroll 1
    for (int first = 0; first < kSteps; first += AHEAD) {
#pragma unroll
      for (int s = 0; s < AHEAD; ++s) {
        const int i = s % PART, step = first + s;
        typename Unit::Operands& a = operands[Unit::WGMMA ? s % 2 : 0];
        Unit::arrange(a, w[s], q.zero);
        if (step + AHEAD < kSteps) {
          const int k = chunk_of(step + AHEAD) * kChunk;
#pragma unroll
          for (int t = 0; t < Unit::TILES; ++t) {
#pragma unroll
            for (int h = 0; h < 2; ++h) w[s][t][h] = load_fragment(from_w[t][h] + k);
          }
        }
        if (i % CHUNKS == 0) barrier_wait(full + 8 * stage, phase);
        if constexpr (Unit::WGMMA) wgmma_fence();
        Unit::template multiply<T>(sum, a, ring + stage * N::kStage + i % CHUNKS * N::kChunkX, warp, i == 0);
        if constexpr (Unit::WGMMA) {
          wgmma_commit();
          if (i > 0) wgmma_wait<1>();
          if (i > 0 && i % CHUNKS == 0) release((step - 1) / CHUNKS);
          if (i == PART - 1) wgmma_wait<0>();
        }
        if (i == PART - 1 || (!Unit::WGMMA && i % CHUNKS == CHUNKS - 1)) release(step / CHUNKS);
        if (i == PART - 1) {
#pragma unroll
          for (int n = 0; n < Unit::kSums; ++n) total[n] += sum[n];
        }
        if (i % CHUNKS == CHUNKS - 1) {
          stage = stage + 1 == STAGES ? 0 : stage + 1;
          phase ^= stage == 0;
        }
      }
    }
    __syncthreads();
    Unit::store(total, products, N::kStride, warp, lane);
  }
  __syncthreads();
  if constexpr (CLUSTER > 1) cluster_arrive();
  if (consumes) {
    const auto of_pair = [](int r) { return r / 8 * 16 + r % 8; };
    const auto product = [&](int m, float scale, int r) {
      const float4 x = *reinterpret_cast<const float4*>(products + m * N::kStride + r);
      return float4{x.x * scale, x.y * scale, x.z * scale, x.w * scale};
    };
    constexpr int kQuads = kColumns / 4;
    const bool packs = MODE == Mode::swiglu && q.y;
    for (int n = threadIdx.x; n < kQuads * N::kRowsX; n += N::kConsumers) {
      int m = n / kQuads, r = n % kQuads * 4;
      if (packs) {  // a warp stores whole core matrices: lanes are pieces of a chunk and rows of a group
        const int rest = n / 32;
        constexpr int kOf = kColumns / kChunk * 2;  // halves of chunks
        m = rest / kOf * 8 + n / 4 % 8;
        r = rest % kOf / 2 * kChunk + n % 4 * 8 + rest % 2 * 4;
      }
      const int row = first_row + m, column = first_column + r;
      if (row >= rows || column >= out) continue;
      const float scale = p.norm_weight ? __ldcg(p.scales + row) : 1;
      if constexpr (MODE == Mode::pages) {
        const float4 x = product(m, scale, of_pair(r)), y = product(m, scale, of_pair(r) + 8);
        const Pair pair = pair_of(p.pages, column);
        const Place place = place_of(p.pages, row);
        store_pairs<T, 4>(p.pages, row, pair, place, angles_of<4>(p.pages, pair, place), {x.x, x.y, x.z, x.w},
                          {y.x, y.y, y.z, y.w});
      } else {
        uint2 y;
        if constexpr (MODE == Mode::swiglu) {
          const float4 gate = product(m, scale, of_pair(r)), up = product(m, scale, of_pair(r) + 8);
          y = {kernels::cuda::pack<T>(swiglu<T>(gate.x, up.x), swiglu<T>(gate.y, up.y)),
               kernels::cuda::pack<T>(swiglu<T>(gate.z, up.z), swiglu<T>(gate.w, up.w))};
        } else {
          const float4 x = product(m, scale, r);
          y = {kernels::cuda::pack<T>(x.x, x.y), kernels::cuda::pack<T>(x.z, x.w)};
        }
        if (packs) {
          auto* const to = static_cast<char*>(q.y) +
                           (static_cast<int64_t>(column / kChunk) * q.groups + row / 8) * kGroupBytes;
          const int half = column % 8 / 4;
          *reinterpret_cast<uint32_t*>(to + word_in_group(row, column % kChunk / 8, 2 * half)) = y.x;
          *reinterpret_cast<uint32_t*>(to + word_in_group(row, column % kChunk / 8, 2 * half + 1)) = y.y;
        } else {
          *reinterpret_cast<uint2*>(static_cast<T*>(p.y) + static_cast<int64_t>(row) * out + column) = y;
        }
      }
    }
  }
  if constexpr (CLUSTER > 1) cluster_wait();  // nobody ends before all have arrived at its barriers
}

// A cluster of kParts blocks: each has a part of the summed axis, of CHUNKS chunks, all of it asked for at once, and
// adds the parts for its share of the rows of x. RAW: x is not packed.
template <bool WGMMA, int WGS_, int ROWS, int CHUNKS_, bool RAW_>
struct Parts {
  using Unit = Tile<WGMMA, ROWS>;
  static constexpr int WGS = WGS_, CHUNKS = CHUNKS_;
  static constexpr bool RAW = RAW_;
  static constexpr int kThreads = 128 * WGS, kRowsW = 64 * WGS, kRowsX = ROWS, kStride = kRowsW + 4;
  static constexpr int kOwn = ROWS / kParts, kSent = kOwn * kStride * 4, kChunkX = ROWS * 2 * kChunk;
  static constexpr int kReceived = std::max(CHUNKS * kChunkX, kParts * kSent);
  static constexpr int kBarriers = kReceived + kParts * kSent, kBytes = kBarriers + 8 * (CHUNKS + 1);
};

template <typename T, typename N>
__global__ void __launch_bounds__(N::kThreads, 1) multiply_parts(const __grid_constant__ Packed q) {
  extern __shared__ __align__(128) char memory[];
  char* const own = own_memory(memory);
  using Unit = typename N::Unit;
  const FewRows& p = q.p;
  constexpr int CHUNKS = N::CHUNKS, kThreads = N::kThreads;
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, g = lane / 4, c = lane % 4;
  const int out = static_cast<int>(p.out), rows = static_cast<int>(p.rows), in = static_cast<int>(p.in);
  const int part = blockIdx.x, first_column = blockIdx.y * N::kRowsW, first_row = blockIdx.z * N::kRowsX;
  const uint32_t base = kernels::cuda::shared_address(own), landed = base + N::kBarriers, received = landed + 8 * CHUNKS;
  if (threadIdx.x == 0) {
    for (int n = 0; n <= CHUNKS; ++n) barrier_init(landed + 8 * n, 1);
    barriers_are_ready();
    barrier_expect(received, kParts * N::kSent);
  }
  decoding::let_next_start();
  uint4 w[CHUNKS][Unit::TILES][2];
  {
    const T* from_w[Unit::TILES][2];
#pragma unroll
    for (int t = 0; t < Unit::TILES; ++t) {
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        const int r = row_of_tile<Mode::plain>(p, first_column, Unit::first_w(warp) + t * 16 + h * 8 + g);
        from_w[t][h] = static_cast<const T*>(p.W) + static_cast<int64_t>(r) * in + part * kChunk + 8 * c;
      }
    }
#pragma unroll
    for (int i = 0; i < CHUNKS; ++i) {
#pragma unroll
      for (int t = 0; t < Unit::TILES; ++t) {
#pragma unroll
        for (int h = 0; h < 2; ++h) w[i][t][h] = load_fragment(from_w[t][h] + i * kParts * kChunk);
      }
    }
  }
  cluster_arrive();
  __syncthreads();
  decoding::wait_for_launcher();
  if constexpr (N::RAW) {
    // A warp copies groups of 8 rows: lanes are its rows and their pieces.
    constexpr int kGroups = N::kRowsX / 8, kWarps = kThreads / 32, kMine = kGroups / kWarps;
    static_assert(kGroups % kWarps == 0);
    uint4 x[kMine][CHUNKS];
#pragma unroll
    for (int n = 0; n < kMine; ++n) {
      const int row = min(first_row + (warp + n * kWarps) * 8 + g, rows - 1);
      const T* const from = static_cast<const T*>(p.x) + row * p.x_stride + part * kChunk + 8 * c;
#pragma unroll
      for (int i = 0; i < CHUNKS; ++i) {
        x[n][i] = __ldcg(reinterpret_cast<const uint4*>(from + i * kParts * kChunk));
      }
    }
#pragma unroll
    for (int n = 0; n < kMine; ++n) {
#pragma unroll
      for (int i = 0; i < CHUNKS; ++i) {
        const uint32_t to = base + i * N::kChunkX + (warp + n * kWarps) * kGroupBytes + lane * 4;
        store_word(to, x[n][i].x);
        store_word(to + 128, x[n][i].y);
        store_word(to + 256, x[n][i].z);
        store_word(to + 384, x[n][i].w);
      }
    }
    fence_for_bulk_copies();
    __syncthreads();
  } else {
    if (threadIdx.x == 0) {
      const char* const from = static_cast<const char*>(q.x) + first_row / 8 * kGroupBytes;
      for (int i = 0; i < CHUNKS; ++i) {
        barrier_expect(landed + 8 * i, N::kChunkX);
        load_bulk<1>(base + i * N::kChunkX, from + static_cast<int64_t>(part + i * kParts) * q.groups * kGroupBytes,
                     N::kChunkX, landed + 8 * i);
      }
    }
    __syncwarp();
  }
  // What a thread will store.
  constexpr int kQuads = N::kRowsW / 4, kEach = (kQuads * N::kOwn + kThreads - 1) / kThreads;
  uint2 added[kEach];
#pragma unroll
  for (int i = 0; i < kEach; ++i) {
    const int n = threadIdx.x + i * kThreads, row = first_row + part * N::kOwn + n / kQuads,
              column = first_column + n % kQuads * 4;
    if (n < kQuads * N::kOwn && row < rows && column < out && p.add) {
      added[i] = __ldcg(
          reinterpret_cast<const uint2*>(static_cast<const T*>(p.add) + static_cast<int64_t>(row) * out + column));
    }
  }
  float sum[Unit::kSums];
  typename Unit::Operands operands[Unit::WGMMA ? 2 : 1];
#pragma unroll
  for (int i = 0; i < CHUNKS; ++i) {
    typename Unit::Operands& a = operands[Unit::WGMMA ? i % 2 : 0];
    Unit::arrange(a, w[i], q.zero);
    if constexpr (!N::RAW) barrier_wait(landed + 8 * i, 0);
    if constexpr (Unit::WGMMA) wgmma_fence();
    Unit::template multiply<T>(sum, a, base + i * N::kChunkX, warp, i == 0);
    if constexpr (Unit::WGMMA) {
      wgmma_commit();
      if (i > 0) wgmma_wait<1>();
    }
  }
  if constexpr (Unit::WGMMA) wgmma_wait<0>();
  __syncthreads();  // x is used up
  Unit::store(sum, reinterpret_cast<float*>(own), N::kStride, warp, lane);
  fence_for_bulk_copies();
  cluster_wait();  // all have set up their barriers
  __syncthreads();
  if (threadIdx.x < kParts) {
    const int to = threadIdx.x;
    send_bulk(base + N::kReceived + part * N::kSent, base + to * N::kSent, N::kSent, received, to);
  }
  __syncwarp();
  barrier_wait(received, 0);
  cluster_arrive();
  const auto* const products = reinterpret_cast<const float*>(own + N::kReceived);
#pragma unroll
  for (int i = 0; i < kEach; ++i) {
    const int n = threadIdx.x + i * kThreads, m = n / kQuads, r = n % kQuads * 4;
    const int row = first_row + part * N::kOwn + m, column = first_column + r;
    if (n >= kQuads * N::kOwn || row >= rows || column >= out) continue;
    float4 y{};
#pragma unroll
    for (int from = 0; from < kParts; ++from) {
      const float4 one = *reinterpret_cast<const float4*>(products + (from * N::kOwn + m) * N::kStride + r);
      y = {y.x + one.x, y.y + one.y, y.z + one.z, y.w + one.w};
    }
    if (p.add) {
      const float2 u = kernels::cuda::unpack<T>(added[i].x), v = kernels::cuda::unpack<T>(added[i].y);
      y = {rounded<T>(y.x) + u.x, rounded<T>(y.y) + u.y, rounded<T>(y.z) + v.x, rounded<T>(y.w) + v.y};
    }
    *reinterpret_cast<uint2*>(static_cast<T*>(p.y) + static_cast<int64_t>(row) * out + column) = {
        kernels::cuda::pack<T>(y.x, y.y), kernels::cuda::pack<T>(y.z, y.w)};
  }
  cluster_wait();
}

template <auto kernel>
void start_packed(const Packed& q, dim3 grid, int threads, int bytes, int cluster, cudaStream_t stream) {
  const auto check = [](cudaError_t status) {
    if (status != cudaSuccess) throw std::runtime_error(cudaGetErrorString(status));
  };
  static const bool prepared = [&] {
    if (bytes > 0) check(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes));
    return true;
  }();
  (void)prepared;
  cudaLaunchAttribute attributes[2]{};
  attributes[0].id = cudaLaunchAttributeProgrammaticStreamSerialization;
  attributes[0].val.programmaticStreamSerializationAllowed = 1;
  attributes[1].id = cudaLaunchAttributeClusterDimension;
  attributes[1].val.clusterDim.x = cluster;
  attributes[1].val.clusterDim.y = 1;
  attributes[1].val.clusterDim.z = 1;
  cudaLaunchConfig_t config{};
  config.gridDim = grid;
  config.blockDim = threads;
  config.dynamicSmemBytes = bytes;
  config.stream = stream;
  config.attrs = attributes;
  config.numAttrs = cluster > 1 ? 2 : 1;
  check(cudaLaunchKernelEx(&config, kernel, q));
}

inline void run_pack(const Packed& q, cudaStream_t stream) {
  constexpr int kRows = kPackThreads / 32;
  start_packed<weigh_packed<__nv_bfloat16>>(q, static_cast<unsigned>((q.p.rows + kRows - 1) / kRows), kPackThreads, 0, 1,
                                            stream);
}
template <typename N, Mode MODE>
void run_wide(const Packed& q, cudaStream_t stream) {
  constexpr int kColumns = MODE == Mode::plain ? N::kRowsW : N::kRowsW / 2;
  if (q.p.in != N::PART * kParts * kChunk || q.p.out % (kColumns * N::CLUSTER)) throw std::runtime_error("shape");
  const dim3 grid(static_cast<unsigned>(q.p.out / kColumns),
                  static_cast<unsigned>((q.p.rows + N::kRowsX - 1) / N::kRowsX));
  start_packed<multiply_wide<__nv_bfloat16, N, MODE>>(q, grid, N::kThreads, N::kBytes, N::CLUSTER, stream);
}
template <typename N>
void run_parts(const Packed& q, cudaStream_t stream) {
  if (q.p.in != N::CHUNKS * kParts * kChunk || q.p.out % 4) throw std::runtime_error("shape");
  const dim3 grid(kParts, static_cast<unsigned>((q.p.out + N::kRowsW - 1) / N::kRowsW),
                  static_cast<unsigned>((q.p.rows + N::kRowsX - 1) / N::kRowsX));
  start_packed<multiply_parts<__nv_bfloat16, N>>(q, grid, N::kThreads, N::kBytes, kParts, stream);
}

}  // namespace step

}  // namespace lazy::ops::cuda
