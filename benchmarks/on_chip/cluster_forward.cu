// An experiment: a forward kernel of Elastic-Softmax that computes scores and exponentials only once. A cluster of C
// blocks processes 128 query rows. Each block processes every C-th tile of their keys, and keeps the unnormalized
// probabilities in registers as fp16 until the blocks have exchanged the maxima and sums of the rows through
// distributed shared memory. Then each block computes the weights from its probabilities, multiplies them by its tiles
// of V, and sends its partial outputs to the block that writes these rows.
//
// Limitations: causal, bf16, head size 64, negative tau, no distance bias, lengths that are multiples of 128 up to 512
// C. run.py in this directory builds and runs the kernel.
#include <algorithm>
#include <cstdio>
#include <exception>
#include <stdexcept>
#include <string>

#include "attention/cuda/hopper_rows.cuh"

namespace lazy::kernels::cuda {

void check(cudaError_t status, const char* what) {
  if (status != cudaSuccess) throw std::runtime_error(std::string(what) + ": " + cudaGetErrorString(status));
}

namespace on_chip {

using T = __nv_bfloat16;
using hopper::issue_product;
using hopper::kLn2;
using hopper::kLog2e;
using hopper::quad_sum;

// M query rows in two warpgroups; tiles of N keys, at most TILES tiles per block.
constexpr int D = 64, M = 128, N = 128, TILES = 4, STAGES = 8, THREADS = 384;
constexpr int kTileBytes = N * D * 2, kOutBytes = M * D * 4;

struct Arguments {
  CUtensorMap q, k, v;  // boxes of 128 tokens
  const float* tau;
  T* out;
  float* lse;
  int batch, heads, length;
  float factor;  // scale * log2(e)
};

template <int C>
struct Shared {
  Pipeline<2> q;
  Pipeline<STAGES> kv;
  uint64_t sums[2][2];  // indices: warpgroup, parity of the item
  uint64_t outs;
};

// Maps `address` in this block's shared memory to the same location in the shared memory of block `rank` of the
// cluster.
__device__ inline uint32_t remote(uint32_t address, int rank) {
  uint32_t there;
  asm volatile("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(there) : "r"(address), "r"(rank));
  return there;
}
// Asynchronous stores to the shared memory of another block. They complete transactions on an mbarrier of that block.
__device__ inline void send(uint32_t to, float x, float y, uint32_t barrier) {
  asm volatile("st.async.shared::cluster.mbarrier::complete_tx::bytes.v2.b32 [%0], {%1, %2}, [%3];" ::"r"(to),
               "r"(__float_as_uint(x)), "r"(__float_as_uint(y)), "r"(barrier)
               : "memory");
}
__device__ inline void send(uint32_t to, const float* x, uint32_t barrier) {
  asm volatile("st.async.shared::cluster.mbarrier::complete_tx::bytes.v4.b32 [%0], {%1, %2, %3, %4}, [%5];" ::"r"(to),
               "r"(__float_as_uint(x[0])), "r"(__float_as_uint(x[1])), "r"(__float_as_uint(x[2])),
               "r"(__float_as_uint(x[3])), "r"(barrier)
               : "memory");
}
__device__ inline void wait_for_cluster(uint64_t* barrier, int parity) {
  asm volatile(
      "{.reg .pred done;\n"
      "wait_%=: mbarrier.try_wait.parity.acquire.cluster.shared::cta.b64 done, [%0], %1;\n"
      "@!done bra wait_%=;}" ::"r"(shared_address(barrier)),
      "r"(parity)
      : "memory");
}
__device__ inline void cluster_barrier() {
  asm volatile("barrier.cluster.arrive.release.aligned;\nbarrier.cluster.wait.acquire.aligned;" ::: "memory");
}

// exp2 without the special-function unit: 2^n times a polynomial. The relative error is below 6e-6 for x >= -126.
__device__ inline float exp2_polynomial(float x) {
  float y;
  asm("max.NaN.f32 %0, %1, 0fC2FC0000;" : "=f"(y) : "f"(x));  // -126
  const float shifted = y + 12582912.0f, f = y - (shifted - 12582912.0f);
  const float p = fmaf(fmaf(fmaf(fmaf(9.55411e-3f, f, 5.587038e-2f), f, 0.24024696f), f, 0.69312803f), f, 0.99999944f);
  return __uint_as_float(__float_as_uint(p) + (__float_as_uint(shifted) << 23));
}

// Flags for timing variants that skip a part of the computation. Their results are wrong.
constexpr int kNoExchange = 1, kNoExponentials = 2, kNoSum = 4;

// Computes exp2(s c - base) for the scores of one tile that this thread has, stores them as fp16 in the register layout
// of a left matrix operand, and adds them to the row sums. The base of a row is its largest score in the first tile of
// the block. If the exponentials of a later tile exceed the range of fp16, the base becomes the maximum of that tile,
// and `scale` rescales the stored exponentials of the earlier tiles.
template <int POLYNOMIALS, int SKIP, typename Scale>
__device__ __forceinline__ void keep_exponentials(bool first, const float (&s)[N / 2], float c, float (&base)[2],
                                                  float (&sum)[2], uint32_t (&held)[N / 16][4], Scale scale) {
  auto largest = [&](int h) {
    float most = -INFINITY;
#pragma unroll
    for (int n = 0; n < N / 2; n += 4) most = fmaxf(most, fmaxf(s[n + 2 * h], s[n + 2 * h + 1]));
    most = fmaxf(most, __shfl_xor_sync(~0u, most, 1));
    return fmaxf(most, __shfl_xor_sync(~0u, most, 2)) * c;
  };
  if (first) {
    base[0] = largest(0);
    base[1] = largest(1);
  }
  float part[2][2];
#pragma unroll 1
  for (int tries = 0; tries < 2; ++tries) {  // not unrolled: two copies of the code would need too many registers
    part[0][0] = part[0][1] = part[1][0] = part[1][1] = 0;
#pragma unroll
    for (int k = 0; k < N / 16; ++k) {
#pragma unroll
      for (int n = 0; n < 4; ++n) {
        const float a = fmaf(s[8 * k + 2 * n], c, -base[n % 2]), b = fmaf(s[8 * k + 2 * n + 1], c, -base[n % 2]);
        const float x = SKIP & kNoExponentials ? a : exp2_fast(a);
        const float y = SKIP & kNoExponentials ? b : n < POLYNOMIALS ? exp2_polynomial(b) : exp2_fast(b);
        part[n % 2][0] += x;
        part[n % 2][1] += y;
        held[k][n] = pack<__half>(x, y);
      }
    }
    const bool fits = part[0][0] + part[0][1] < 0x1p15f && part[1][0] + part[1][1] < 0x1p15f;
    if (first || SKIP & kNoExponentials || __all_sync(~0u, fits)) break;
    float shrink[2];
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const float most = fmaxf(base[h], largest(h));
      shrink[h] = exp2_fast(base[h] - most);
      sum[h] *= shrink[h];
      base[h] = most;
    }
    scale(shrink);
  }
  sum[0] += part[0][0] + part[0][1];
  sum[1] += part[1][0] + part[1][1];
}

__device__ inline void shrink_held(uint32_t (&held)[N / 16][4], const float (&by)[2]) {
#pragma unroll
  for (int k = 0; k < N / 16; ++k) {
#pragma unroll
    for (int n = 0; n < 4; ++n) {
      const float2 x = __half22float2(*reinterpret_cast<const __half2*>(&held[k][n]));
      held[k][n] = pack<__half>(x.x * by[n % 2], x.y * by[n % 2]);
    }
  }
}

// A work item of a cluster: one block of rows of one head. A cluster processes all row blocks of a head, starting with
// the last one (which has the most keys), and then continues with its next head.
struct Item {
  int head, row;  // head: index over batches and heads; row: index of the row block
  __device__ void next(int blocks, int clusters) {
    if (--row < 0) {
      row = blocks - 1;
      head += clusters;
    }
  }
};

// POLYNOMIALS of every eight exponentials are computed by polynomials instead of the special-function unit.
template <int C, int POLYNOMIALS, int SKIP>
__global__ void __launch_bounds__(THREADS, 1) forward(const __grid_constant__ Arguments a) {
  extern __shared__ char unaligned[];
  char* const memory = unaligned + (1024 - shared_address(unaligned) % 1024) % 1024;
  __shared__ Shared<C> sm;
  char* const out_slots = memory + (2 + STAGES) * kTileBytes;
  float2* const sum_slots = reinterpret_cast<float2*>(out_slots + kOutBytes);  // [parity][block][row]
  const int rank = C == 1 ? 0 : blockIdx.x % C, cluster = blockIdx.x / C, clusters = gridDim.x / C;
  const int blocks = a.length / M, all_heads = a.batch * a.heads;
  if (threadIdx.x == 0) {
    sm.q.init(8);  // one arrival per consumer warp
    sm.kv.init(8);
    for (int n = 0; n < 4; ++n) barrier_init(&sm.sums[n / 2][n % 2], 1);
    barrier_init(&sm.outs, 1);
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
  }
  __syncthreads();
  if constexpr (C > 1) cluster_barrier();
  constexpr bool EXCHANGE = C > 1 && !(SKIP & kNoExchange);
  const int group = warpgroup() - 1;
  // A block processes the tiles first, first + C, ... of an item. The first tile depends on the item, so that the
  // remaining tiles are assigned to a different block for every item.
  auto first_tile = [&](int index) { return (rank + index) % C; };
  auto tile_count = [&](const Item& item, int first) { return first <= item.row ? (item.row - first) / C + 1 : 0; };

  if (group < 0) {  // the producer
    dealloc_registers<24>();
    if (threadIdx.x != 0) return;
    int use = 0, q_use = 0, index = 0;
    for (Item item{cluster, blocks - 1}; item.head < all_heads; item.next(blocks, clusters), ++index) {
      const int first = first_tile(index), count = tile_count(item, first);
      const int batch = item.head / a.heads, head = item.head % a.heads;
      if (count == 0) continue;
      sm.q.wait_empty(q_use);
      barrier_expect(&sm.q.full[q_use % 2], kTileBytes);
      copy_box(memory + q_use % 2 * kTileBytes, &a.q, &sm.q.full[q_use % 2], 0, head, item.row * M, batch);
      ++q_use;
      for (int n = 0; n < 2 * count; ++n, ++use) {
        sm.kv.wait_empty(use);
        uint64_t* full = &sm.kv.full[use % STAGES];
        barrier_expect(full, kTileBytes);
        copy_box(memory + (2 + use % STAGES) * kTileBytes, n < count ? &a.k : &a.v, full, 0, head,
                 (first + n % count * C) * N, batch);
      }
    }
    return;
  }

  alloc_registers<240>();
  const int lane = threadIdx.x % 32, warp = group * 4 + threadIdx.x / 32 % 4, thread = threadIdx.x % 128;
  const int own_row = warp * 16 + lane / 4;  // this thread also has row own_row + 8
  const uint32_t sq = descriptor_base(shared_address(memory) + group * 64 * 128);
  const uint32_t sk = descriptor_base(shared_address(memory) + 2 * kTileBytes);
  const uint32_t sv = descriptor_base(shared_address(memory) + 2 * kTileBytes, N * 128);
  const bool writes = C == 1 || group == rank * 2 / C;  // this warpgroup writes the block's rows of the output
  constexpr int own_warps = 8 / C;                      // the block writes the rows of this many warps
  auto write_rows = [&](const Item& item, int index) {
    wait_for_cluster(&sm.outs, index % 2);
    T* const out = a.out + (static_cast<int64_t>(item.head / a.heads) * a.length + item.row * M) * a.heads * D +
                   item.head % a.heads * D;
    const int step = a.heads * D;
    for (int n = thread; n < own_warps * 256; n += 128) {
      float4 x = {};
#pragma unroll
      for (int c = 0; c < C; ++c) {
        const float4 y = reinterpret_cast<const float4*>(out_slots)[c * own_warps * 256 + n];
        x = {x.x + y.x, x.y + y.y, x.z + y.z, x.w + y.w};
      }
      const int row = (rank * own_warps + n / 256) * 16 + n % 32 / 4, column = n / 32 % 8 * 8 + n % 4 * 2;
      *reinterpret_cast<uint32_t*>(out + row * step + column) = pack<T>(x.x, x.y);
      *reinterpret_cast<uint32_t*>(out + (row + 8) * step + column) = pack<T>(x.z, x.w);
    }
  };

  int use = 0, q_use = 0, index = 0;
  Item before{};
  for (Item item{cluster, blocks - 1}; item.head < all_heads; before = item, item.next(blocks, clusters), ++index) {
    const int first = first_tile(index), count = uniform(tile_count(item, first));
    uint64_t* const told = &sm.sums[group][index % 2];
    if (EXCHANGE && thread == 0) barrier_expect(told, C * 64 * 8);
    uint32_t held[TILES][N / 16][4];
    float base[2] = {-INFINITY, -INFINITY}, sum[2] = {};
    if (count > 0) {
      sm.q.wait_full(q_use);
#pragma unroll
      for (int j = 0; j < TILES; ++j) {
        if (j < count) {
          float s[N / 2];
          sm.kv.wait_full(use + j);
          issue_product<T, D, M, N>(s, sq + q_use % 2 * descriptor_units(kTileBytes),
                                    sk + (use + j) % STAGES * descriptor_units(kTileBytes));
          wgmma_wait<0>();
          fence_registers(s);
          if (lane == 0) barrier_arrive(&sm.kv.empty[(use + j) % STAGES]);
          if (first + j * C == item.row) {  // the tile on the diagonal needs a causal mask
            int at = own_row - lane % 4 * 2;
            asm volatile("" : "+r"(at));
#pragma unroll
            for (int n = 0; n < N / 2; ++n) {
              if (n / 4 * 8 + n % 2 > at + n / 2 % 2 * 8) s[n] = -INFINITY;
            }
          }
          keep_exponentials<POLYNOMIALS, SKIP>(j == 0, s, a.factor, base, sum, held[j], [&](const float(&by)[2]) {
#pragma unroll
            for (int i = 0; i < j; ++i) shrink_held(held[i], by);
          });
        }
      }
      if (lane == 0) barrier_arrive(&sm.q.empty[q_use % 2]);
      ++q_use;
    }
    if (EXCHANGE && writes) {
      if (index > 0) write_rows(before, index - 1);
      if (thread == 0) barrier_expect(&sm.outs, kOutBytes);
    }

    float inverse[2], offset[2];
    sum[0] = quad_sum(sum[0]);
    sum[1] = quad_sum(sum[1]);
    if constexpr (EXCHANGE) {
      const uint32_t slot = shared_address(sum_slots + (index % 2 * C + rank) * M + own_row), at = shared_address(told);
#pragma unroll
      for (int c = lane % 4; c < C; c += 4) {
        const uint32_t there = remote(slot, c), barrier = remote(at, c);
        send(there, base[0], sum[0], barrier);
        send(there + 8 * 8, base[1], sum[1], barrier);
      }
      wait_for_cluster(told, index / 2 % 2);
    }
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const int row = item.row * M + own_row + 8 * h;
      float most = base[h], all = sum[h];
      if constexpr (EXCHANGE) {
        const float2* const parts = sum_slots + index % 2 * C * M + own_row + 8 * h;
        most = -INFINITY;
        all = 0;
#pragma unroll
        for (int c = 0; c < C; ++c) most = fmaxf(most, parts[c * M].x);
#pragma unroll
        for (int c = 0; c < C; ++c) all += parts[c * M].y * exp2_fast(parts[c * M].x - most);
      }
      inverse[h] = exp2_fast(base[h] - most) / all;
      offset[h] = a.tau[item.head % a.heads] / static_cast<float>(row + 1);
      if (rank == 0 && lane % 4 == 0)
        a.lse[static_cast<int64_t>(item.head) * a.length + row] = (most + log2f(all)) * kLn2;
    }

    float o[D / 2] = {};
    use += count;
#pragma unroll
    for (int j = 0; j < TILES; ++j) {
      if (SKIP & kNoSum) {
        if (j < count) {
          sm.kv.wait_full(use + j);
          o[8 * j] += __uint_as_float(held[j][0][0]);
          if (lane == 0 && j < count - 1) barrier_arrive(&sm.kv.empty[(use + j) % STAGES]);
        }
      } else if (j < count) {
#pragma unroll
        for (int k = 0; k < N / 16; ++k) {
#pragma unroll
          for (int n = 0; n < 4; ++n) {
            const float2 x = __half22float2(*reinterpret_cast<const __half2*>(&held[j][k][n]));
            held[j][k][n] =
                pack_positive<T>(fmaf(x.x, inverse[n % 2], offset[n % 2]), fmaf(x.y, inverse[n % 2], offset[n % 2]));
          }
        }
        sm.kv.wait_full(use + j);
        const uint32_t tile = sv + (use + j) % STAGES * descriptor_units(kTileBytes);
        wgmma_fence();
#pragma unroll
        for (int k = 0; k < N / 16; ++k) wgmma<T, 1>(o, held[j][k], descriptor(tile + descriptor_units(k * 2048)), 1);
        wgmma_commit();
        if (j > 0) {  // the next weights are computed while this product runs
          wgmma_wait<1>();
          if (lane == 0) barrier_arrive(&sm.kv.empty[(use + j - 1) % STAGES]);
        }
      }
    }
    use += count;
    wgmma_wait<0>();
    fence_registers(o);
    if (lane == 0 && count > 0) barrier_arrive(&sm.kv.empty[(use - 1) % STAGES]);

    if constexpr (EXCHANGE) {
      const int to = warp / own_warps;
      const uint32_t slot =
          remote(shared_address(out_slots) + (rank * own_warps + warp % own_warps) * 4096 + lane * 16, to);
      const uint32_t barrier = remote(shared_address(&sm.outs), to);
#pragma unroll
      for (int n = 0; n < D / 8; ++n) send(slot + n * 512, &o[4 * n], barrier);
    } else {  // stage in shared memory, so that global stores have 16 bytes
      char* const rows = out_slots + warp * 2048;
      __syncwarp();
#pragma unroll
      for (int n = 0; n < D / 8; ++n) {
#pragma unroll
        for (int h = 0; h < 2; ++h) {
          *reinterpret_cast<uint32_t*>(rows + swizzled(lane / 4 + 8 * h, n) + lane % 4 * 4) =
              pack<T>(o[4 * n + 2 * h], o[4 * n + 2 * h + 1]);
        }
      }
      __syncwarp();
      T* const out = a.out +
                     (static_cast<int64_t>(item.head / a.heads) * a.length + item.row * M + warp * 16) * a.heads * D +
                     item.head % a.heads * D;
#pragma unroll
      for (int n = lane; n < 128; n += 32) {
        *reinterpret_cast<uint4*>(out + static_cast<int64_t>(n / 8) * a.heads * D + n % 8 * 8) =
            *reinterpret_cast<const uint4*>(rows + swizzled(n / 8, n % 8));
      }
    }
  }
  if constexpr (EXCHANGE) {
    if (writes && index > 0) write_rows(before, index - 1);
    cluster_barrier();  // a block must not exit while other blocks may send to it
  }
}

template <int C, int POLYNOMIALS = 0, int SKIP = 0>
void launch(const Arguments& a, cudaStream_t stream) {
  constexpr int bytes = (2 + STAGES) * kTileBytes + kOutBytes + (C > 1 ? 2 * C * M * 8 : 0) + 1024;
  check(cudaFuncSetAttribute(forward<C, POLYNOMIALS, SKIP>, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes),
        "shared memory");
  cudaLaunchAttribute attribute;
  attribute.id = cudaLaunchAttributeClusterDimension;
  attribute.val.clusterDim.x = C;
  attribute.val.clusterDim.y = attribute.val.clusterDim.z = 1;
  cudaLaunchConfig_t config{};
  config.gridDim = dim3(C);
  config.blockDim = dim3(THREADS);
  config.dynamicSmemBytes = bytes;
  config.stream = stream;
  config.attrs = &attribute;
  config.numAttrs = 1;
  static const int fit = [&] {
    int clusters = 0;
    check(cudaOccupancyMaxActiveClusters(&clusters, forward<C, POLYNOMIALS, SKIP>, &config), "clusters that fit");
    if (POLYNOMIALS + SKIP == 0) std::fprintf(stderr, "clusters of %d: %d fit\n", C, clusters);
    return clusters;
  }();
  config.gridDim = dim3(std::min(fit, a.batch * a.heads) * C);
  check(cudaLaunchKernelEx(&config, forward<C, POLYNOMIALS, SKIP>, a), "launch");
}

}  // namespace on_chip
}  // namespace lazy::kernels::cuda

// Launches the kernel. variant 0: the normal kernel; 10 n: n of every eight exponentials are computed by polynomials; a
// sum of 1, 2 and 4: skip parts of the computation (kNoExchange, kNoExponentials, kNoSum). q, k, v, out: (batch,
// length, heads, 64), bf16; lse: (batch, heads, length). Returns 0 on success.
extern "C" int on_chip_forward(int blocks, int variant, int batch, int length, int heads, const void* q, const void* k,
                               const void* v, const float* tau, void* out, float* lse, void* stream) try {
  using namespace lazy::kernels;
  using namespace lazy::kernels::cuda;
  namespace on_chip = lazy::kernels::cuda::on_chip;
  if (length % on_chip::M != 0 || length > blocks * on_chip::TILES * on_chip::N)
    throw std::runtime_error("expected a length that is a multiple of 128 and at most 512 keys per block");
  Params p{};
  p.head_dim = on_chip::D;
  p.batch = batch;
  p.dtype = DType::bf16;
  auto map = [&](const void* x) {
    const Tensor t{const_cast<void*>(x), int64_t{length} * heads * on_chip::D, int64_t{heads} * on_chip::D, on_chip::D,
                   1};
    return tensor_map(p, t, heads, length, on_chip::N);
  };
  const on_chip::Arguments a{map(q), map(k), map(v), tau,    static_cast<on_chip::T*>(out),
                             lse,    batch,  heads,  length, 0.125f * on_chip::kLog2e};
  const auto queue = static_cast<cudaStream_t>(stream);
  const int chosen = variant * 10 + blocks;
  switch (chosen) {
    case 1:
      on_chip::launch<1>(a, queue);
      break;
    case 2:
      on_chip::launch<2>(a, queue);
      break;
    case 4:
      on_chip::launch<4>(a, queue);
      break;
    case 8:
      on_chip::launch<8>(a, queue);
      break;
    case 101:
      on_chip::launch<1, 1>(a, queue);
      break;
    case 102:
      on_chip::launch<2, 1>(a, queue);
      break;
    case 104:
      on_chip::launch<4, 1>(a, queue);
      break;
    case 108:
      on_chip::launch<8, 1>(a, queue);
      break;
    case 201:
      on_chip::launch<1, 2>(a, queue);
      break;
    case 202:
      on_chip::launch<2, 2>(a, queue);
      break;
    case 204:
      on_chip::launch<4, 2>(a, queue);
      break;
    case 208:
      on_chip::launch<8, 2>(a, queue);
      break;
    case 18:
      on_chip::launch<8, 0, 1>(a, queue);
      break;
    case 21:
      on_chip::launch<1, 0, 2>(a, queue);
      break;
    case 28:
      on_chip::launch<8, 0, 2>(a, queue);
      break;
    case 41:
      on_chip::launch<1, 0, 4>(a, queue);
      break;
    case 48:
      on_chip::launch<8, 0, 4>(a, queue);
      break;
    case 78:
      on_chip::launch<8, 0, 7>(a, queue);
      break;
    default:
      throw std::runtime_error("expected 1, 2, 4 or 8 blocks per cluster and a known variant");
  }
  return 0;
} catch (const std::exception& error) {
  std::fprintf(stderr, "%s\n", error.what());
  return 1;
}
