// Forward on Hopper. A producer warp loads tiles by TMA, and consumer warpgroups with 64 rows each compute with wgmma.
#include "attention/cuda/hopper_forward_elastic.cuh"
#include "attention/cuda/hopper_forward_softmax.cuh"
#include "attention/cuda/launchers.h"

namespace lazy::kernels::cuda {

namespace hopper {

// Bits of the template parameter SWEEP, which select the normalizer and the outputs. kElastic: the
// normalizer takes tau. kStats applies only together with kElastic, because softmax always computes Params::stats.
// kScores selects Params::score_stats.
constexpr int kElastic = 1, kStats = 2, kAliveSum = 4, kScores = 8;
constexpr bool has(int sweep, int what) { return (sweep & what) != 0; }

// Code of the producer thread: loads the queries, then the tiles in the order in which the consumers use them.
template <int D, int SWEEP>
__device__ void produce_tiles(const ForwardMaps& maps, const Tile& t, int kv_head, const Span& span,
                              ForwardShared<D, has(SWEEP, kAliveSum)>& sm, char* memory) {
  using S = ForwardShape<D, has(SWEEP, kAliveSum)>;
  char* const k_tiles = memory + S::q_bytes;
  char* const v_tiles = k_tiles + S::k_stages * S::tile_bytes;
  barrier_expect(&sm.q_full, S::q_bytes);
  for (int half = 0; half < S::halves; ++half) {
    for (int w = 0; w < S::consumers; ++w) {
      copy_box(memory + (half * S::M + 64 * w) * 128, &maps.q, &sm.q_full, 64 * half, t.head,
               t.q_begin + t.first + 64 * w, t.batch);
    }
  }
  auto fetch = [&](auto& ring, char* to, const CUtensorMap* map, int stages, int use, int key) {
    ring.wait_empty(use);
    uint64_t* full = &ring.full[use % stages];
    barrier_expect(full, S::tile_bytes);
    for (int half = 0; half < S::halves; ++half) {
      copy_box(to + use % stages * S::tile_bytes + half * S::N * 128, map, full, 64 * half, kv_head, t.k_begin + key,
               t.batch);
    }
  };
  for (int n = 0; n < span.tiles; ++n) {
    const int key = span.key<S::N>(n, true);
    fetch(sm.k, k_tiles, &maps.k, S::k_stages, n, key);
    if constexpr (!has(SWEEP, kElastic)) fetch(sm.v, v_tiles, &maps.v, S::v_stages, n, key);
  }
  if constexpr (has(SWEEP, kElastic)) {
    // The scores of the first tile of the second sweep are still in registers, so its keys are not loaded.
    for (int n = 0; n < span.tiles; ++n) {
      const int key = span.key<S::N>(n, false);
      if (n > 0) fetch(sm.k, k_tiles, &maps.k, S::k_stages, span.tiles + n - 1, key);
      fetch(sm.v, v_tiles, &maps.v, S::v_stages, n, key);
    }
  }
}

// Stores the warpgroup's output rows x. Each warp first writes its rows to its part of the query tile in shared memory,
// so that each global store writes 16 bytes.
template <typename T, int D, int M>
__device__ void store_rows(const Params& p, const Tensor& to, const Tile& t, char* memory, const float (&x)[D / 2]) {
  const int warp_row = threadIdx.x / 32 * 16 - 64, lane = threadIdx.x % 32;
#pragma unroll
  for (int n = 0; n < D / 8; ++n) {
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      *reinterpret_cast<uint32_t*>(memory + n / 8 * M * 128 + swizzled(warp_row + lane / 4 + 8 * h, n % 8) +
                                   lane % 4 * 4) = pack<T>(x[4 * n + 2 * h], x[4 * n + 2 * h + 1]);
    }
  }
  __syncwarp();
  T* out = static_cast<T*>(to.data) + q_offset(to, t, t.head, t.first);
#pragma unroll
  for (int n = lane; n < 16 * (D / 8); n += 32) {
    const int row = warp_row + n / (D / 8), c = n % (D / 8);
    if (t.first + row < t.q_length && c * 8 < p.head_dim) {
      *reinterpret_cast<uint4*>(out + row * to.token + c * 8) =
          *reinterpret_cast<const uint4*>(memory + c / 8 * M * 128 + swizzled(row, c % 8));
    }
  }
}

template <typename T, int D, int SWEEP>
__global__ void __launch_bounds__(ForwardShape<D, has(SWEEP, kAliveSum)>::threads, 1)
    forward(const __grid_constant__ Params p, const __grid_constant__ ForwardMaps maps, int tiles) {
  constexpr bool ALIVE = has(SWEEP, kAliveSum);
  using S = ForwardShape<D, ALIVE>;
  constexpr int N = S::N;
  extern __shared__ char unaligned[];
  char* const memory = unaligned + (1024 - shared_address(unaligned) % 1024) % 1024;
  __shared__ ForwardShared<D, ALIVE> sm;
  float* const table = reinterpret_cast<float*>(memory + S::q_bytes + (S::k_stages + S::v_stages) * S::tile_bytes);
  __shared__ Tile t;  // in shared memory to save registers
  Tile found;
  found.head = blockIdx.y;
  found.batch = blockIdx.x / tiles;
  // Start with the last tiles: with a causal mask they have the most keys.
  if (!locate(p, tiles - 1 - blockIdx.x % tiles, S::M, false, found)) return;
  Span span;
  const int last = min(found.first + S::M, found.q_length) - 1;
  span.begin = uniform(visible(p, found, found.first).begin / N * N);
  span.tiles = uniform((max(visible(p, found, last).end - span.begin, 0) + N - 1) / N);
  if (threadIdx.x == 0) {
    t = found;
    barrier_init(&sm.q_full, 1);
    sm.k.init(4 * S::consumers);  // number of arrivals per use: one for each consumer warp
    sm.v.init(4 * S::consumers);
    fence_barriers();
  }
  fill_table(p, found.head, table, S::pad, threadIdx.x, S::threads);
  __syncthreads();
  const int group = warpgroup();
  if (group == 0) {  // producer warpgroup
    dealloc_registers<S::consumers == 3 ? 32 : 24>();
    if (threadIdx.x != 0 || span.tiles == 0) return;
    produce_tiles<D, SWEEP>(maps, t, t.head / (p.heads / p.kv_heads), span, sm, memory);
    return;
  }

  alloc_registers<S::registers>();
  Consumer<T, D, ALIVE> b{p, t, sm};
  const int offset_rows = (group - 1) * 64;
  b.start(t.first + offset_rows, p.bias_window > 0 ? table + S::pad : nullptr);
  b.template cut<N>(span.begin);
  b.count = span.tiles;
  if constexpr (!has(SWEEP, kElastic)) {
    b.order.group = group - 1;
    b.order.left = span.tiles;
    b.order.start();
  }
  b.q = shared_address(memory) + offset_rows * 128;
  b.k = shared_address(memory) + S::q_bytes;
  b.sq = descriptor_base(b.q);
  b.sk = descriptor_base(b.k);
  b.sv = descriptor_base(b.k + S::k_stages * S::tile_bytes, N * 128);
  RowResults r;
  float o[D / 2], alive[D / 2];
#pragma unroll
  for (int n = 0; n < D / 2; ++n) o[n] = alive[n] = 0;
  if constexpr (has(SWEEP, kScores)) {
    if (b.tiles.begin >= b.tiles.end) write_no_scores(b);
  }
  if (span.tiles > 0) {
    barrier_wait(&sm.q_full, 0);
    if constexpr (!has(SWEEP, kElastic)) {
      softmax_rows<T, D, has(SWEEP, kScores)>(b, o, r);
    } else {
      elastic_rows<T, D, has(SWEEP, kStats), ALIVE, has(SWEEP, kScores)>(b, o, alive, r);
    }
  }

  store_rows<T, D, S::M>(p, p.out, t, memory, o);
  if constexpr (ALIVE) {
    __syncwarp();
    store_rows<T, D, S::M>(p, p.alive_sum, t, memory, alive);
  }
  write_results(p, b, r);
}

template <typename T, int D, int SWEEP>
void launch_forward(const Params& p, cudaStream_t stream) {
  using S = ForwardShape<D, has(SWEEP, kAliveSum)>;
  const int tiles = tile_count(p, p.q_length, S::M);
  if (tiles * p.batch == 0) return;
  const int bytes = S::bytes + S::table(p.bias_window) * 4;
  const ForwardMaps maps{tensor_map(p, p.q, p.heads, p.q_length, 64), tensor_map(p, p.k, p.kv_heads, p.k_length, S::N),
                         tensor_map(p, p.v, p.kv_heads, p.k_length, S::N)};
  launch("the Hopper forward", forward<T, D, SWEEP>, dim3(tiles * p.batch, p.heads), S::threads, bytes, stream, p, maps,
         tiles);
}

template <typename T, int D, bool ALIVE>
void launch_elastic(const Params& p, cudaStream_t stream) {
  constexpr int sweep = kElastic | (ALIVE ? kAliveSum : 0);
  if (p.score_stats) return launch_forward<T, D, sweep | kStats | kScores>(p, stream);
  if (p.stats) return launch_forward<T, D, sweep | kStats>(p, stream);
  launch_forward<T, D, sweep>(p, stream);
}

template <NormalizerFamily F, int D>
struct HopperForward {
  static_assert(F == NormalizerFamily::exponential);
  static void launch(const Params& p, cudaStream_t stream) {
    with_half_type<__nv_bfloat16, __half>(p.dtype, [&](auto type) {
      using T = decltype(type);
      if (takes_tau(p.normalizer)) {
        if (p.alive_sum.data && writes_alive_sum(p)) return launch_elastic<T, D, true>(p, stream);
        return launch_elastic<T, D, false>(p, stream);
      }
      if (p.score_stats) return launch_forward<T, D, kScores>(p, stream);
      launch_forward<T, D, 0>(p, stream);
    });
  }
};

}  // namespace hopper

ForwardLauncher hopper_forward(NormalizerFamily family, int64_t head_size) {
  return find_launcher<CudaKernel::hopper, ForwardLauncher, hopper::HopperForward>(family, head_size);
}

}  // namespace lazy::kernels::cuda
