// Forward for elastic and elastic_sink with at most 256 keys in a single pass: scores and exponentials are computed
// only once. A warpgroup keeps its unnormalized fp32 probabilities in the score accumulators until the row's sum is
// known. The kernel is persistent: each block processes several row tiles in sequence, so that the keys of the next
// tile are loaded while the values of the current tile are multiplied.
#include <algorithm>

#include "attention/cuda/hopper_forward_elastic.cuh"
#include "attention/cuda/launchers.h"

namespace lazy::kernels::cuda {

namespace hopper::single_pass {

constexpr int D = 64, M = 128, N = 128, TILES = 2, STAGES = 4, THREADS = 384, A = N / 2, kPad = M + N;
constexpr int kQueryBytes = M * D * 2, kTileBytes = N * D * 2, kOutBytes = M * D * 2;
constexpr int kBytes = kQueryBytes + STAGES * kTileBytes + kOutBytes + 1024;

inline int table_entries(int bias_window) { return bias_window > 0 ? bias_window + 2 * kPad : 0; }

struct SinglePassShared {
  Pipeline<1> q;
  // Ring buffer for key and value tiles. For each row tile, it first receives all key tiles in ascending order, then
  // all value tiles in descending order.
  Pipeline<STAGES> kv;
  Tile tiles[THREADS / 32];  // one per warp, in shared memory to save registers
};

// Assigns row tiles to the persistent blocks: find() returns the n-th row tile of this block. A block first processes
// whole heads, from the last row tile to the first, so that consecutive tiles use the same keys. The tiles of the
// remaining heads are distributed over the blocks, starting with the tiles whose rows see the most keys.
struct TileScheduler {
  int tiles, heads;  // tiles: number of row tiles per head; heads: number of heads in all batch entries
  __device__ bool find(int n, int& tile, int& head) const {
    const int blocks = gridDim.x, whole = heads / blocks;
    int left = n - whole * tiles;
    if (left < 0) {
      tile = tiles - 1 - n % tiles;
      head = n / tiles * blocks + blockIdx.x;
      return true;
    }
    const int rest = heads - whole * blocks;
    left = left * blocks + blockIdx.x;
    if (left >= rest * tiles) return false;
    tile = tiles - 1 - left / rest;
    head = whole * blocks + left % rest;
    return true;
  }
};

// A row tile and the tiles of N keys that it sees.
struct TileItem {
  Span span;
  // Finds the tile. All lanes of a warp must call this function. Returns false if no document has the tile.
  __device__ bool start(const Params& p, int tile, int head, Tile& t) {
    Tile found;
    found.head = head % p.heads;
    found.batch = head / p.heads;
    if (!locate(p, tile, M, false, found)) return false;
    const int last = min(found.first + M, found.q_length) - 1;
    span.begin = uniform(visible(p, found, found.first).begin / N * N);
    span.tiles = uniform((max(visible(p, found, last).end - span.begin, 0) + N - 1) / N);
    __syncwarp();
    if (threadIdx.x % 32 == 0) t = found;
    __syncwarp();
    return true;
  }
};

__device__ inline void produce_tiles(const Params& p, const ForwardMaps& maps, const TileScheduler& scheduler,
                                     SinglePassShared& sm, char* memory) {
  Tile& t = sm.tiles[0];
  char* const ring = memory + kQueryBytes;
  int tile, head, use = 0, q_use = 0;
  for (int n = 0; scheduler.find(n, tile, head); ++n) {
    TileItem item;
    if (!item.start(p, tile, head, t) || item.span.tiles == 0) continue;
    const int tiles = item.span.tiles;
    if (threadIdx.x == 0) {
      sm.q.wait_empty(q_use);
      barrier_expect(&sm.q.full[0], kQueryBytes);
      for (int w = 0; w < 2; ++w) {
        copy_box(memory + w * 64 * 128, &maps.q, &sm.q.full[0], 0, t.head, t.q_begin + t.first + 64 * w, t.batch);
      }
      const int kv_head = t.head / (p.heads / p.kv_heads);
      for (int i = 0; i < 2 * tiles; ++i) {
        const int at = use + i;
        sm.kv.wait_empty(at);
        uint64_t* const full = &sm.kv.full[at % STAGES];
        barrier_expect(full, kTileBytes);
        copy_box(ring + at % STAGES * kTileBytes, i < tiles ? &maps.k : &maps.v, full, 0, kv_head,
                 t.k_begin + item.span.key<N>(i < tiles ? i : i - tiles, i >= tiles), t.batch);
      }
    }
    __syncwarp();
    use += 2 * tiles;
    ++q_use;
  }
}

template <typename T, bool SCORES>
struct Rows : RowGroup {
  SinglePassShared& sm;
  uint32_t sq, sk, sv;  // descriptor_base of the warpgroup's queries, of the ring for keys and of the ring for values
  int count, use;       // count: number of key tiles of the row tile; use: number of previous uses of the ring buffer
  float base[2], sum[2], bases[TILES][2];
  RowScores scores;

  __device__ Rows(const Params& p, const Tile& t, SinglePassShared& sm) : RowGroup(p, t), sm(sm) {}

  // Index of the warpgroup's r-th key tile among the key tiles of the block. r counts backwards from the last tile that
  // the rows of the warpgroup see.
  __device__ int own(int r) const { return tiles.end - 1 - r; }
  __device__ int stage(int at) const { return at % STAGES; }
  __device__ void release(int at) {
    if (lane == 0) barrier_arrive(&sm.kv.empty[stage(at)]);
  }
  __device__ void skip(int at) {
    sm.kv.wait_full(at);
    release(at);
  }
  __device__ void issue_scores(float (&s)[A], int r) {
    const int at = use + own(r);
    sm.kv.wait_full(at);
    // Setting s to zero generates no instructions, because the product overwrites s. It tells the compiler that it need
    // not keep s in registers between row tiles.
#pragma unroll
    for (int n = 0; n < A; ++n) s[n] = 0;
    issue_product<T, D, M, N>(s, sq, sk + stage(at) * descriptor_units(kTileBytes));
  }
  // Adds biases and masks to s if the tile needs them. Returns the factor that converts s to scores in units of log2.
  __device__ float finish_tile(float (&s)[A], int tile) {
    return tile < bare.begin || tile >= bare.end ? this->template finish<N>(s, origin + tile * N) : factor;
  }

  // Converts s to exp2(s c - base), where base is the largest score of the row in the tiles that this thread has
  // processed so far.
  __device__ void use_scores(float (&s)[A], int r) {
    fence_registers(s);
    const int tile = own(r);
    release(use + tile);
    const float c = finish_tile(s, tile);
    float from[2], part[2][4] = {}, weighted[2] = {};
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      float most = -INFINITY;
#pragma unroll
      for (int n = 0; n < A; n += 4) most = fmaxf(most, fmaxf(s[n + 2 * h], s[n + 2 * h + 1]));
      most = fmaxf(most * c, base[h]);
      from[h] = most > -INFINITY ? most : 0;
      const float shift = base[h] - from[h], shrink = exp2_fast(shift);
      if constexpr (SCORES) scores.weighted[h] = LaneScores::shrunk(scores.weighted[h], sum[h], shift, shrink);
      sum[h] *= shrink;
      base[h] = bases[r][h] = most;
    }
#pragma unroll
    for (int n = 0; n < A; n += 8) {
#pragma unroll
      for (int i = 0; i < 8; ++i) {
        const int h = i / 2 % 2;
        const float x = fmaf(s[n + i], c, -from[h]);
        s[n + i] = exp2_fast(x);
        if constexpr (SCORES) weighted[h] = LaneScores::added(weighted[h], s[n + i], x);
        part[h][i / 4 * 2 + i % 2] += s[n + i];
      }
    }
#pragma unroll
    for (int h = 0; h < 2; ++h) sum[h] += (part[h][0] + part[h][1]) + (part[h][2] + part[h][3]);
    if constexpr (SCORES) scores.add(1, base, weighted);
    fence_registers(s);  // forces this work before the next wait, so that it overlaps with the product
  }

  // Index, among all uses of the ring buffer, of the value tile that corresponds to the warpgroup's r-th key tile. The
  // producer loads the value tiles from the last to the first.
  __device__ int value_use(int r) const { return use + count + (count - 1 - own(r)); }
  // Issues the product o += weights V for the values of the r-th key tile. For r = 0, o is overwritten.
  __device__ void issue_sum(float (&o)[D / 2], const uint32_t (&weights)[N / 16][4], int r) {
    const int at = value_use(r);
    sm.kv.wait_full(at);
    const uint32_t tile = sv + stage(at) * descriptor_units(kTileBytes);
    wgmma_fence();
#pragma unroll
    for (int k = 0; k < N / 16; ++k)
      wgmma<T, 1>(o, weights[k], descriptor(tile + descriptor_units(k * 2048)), r > 0 || k > 0);
    wgmma_commit();
  }
};

// Processes the rows of one warpgroup, which see OWN tiles of keys.
template <typename T, bool STATS, bool SCORES, int OWN>
__device__ __forceinline__ void own_rows(Rows<T, SCORES>& b, float (&o)[D / 2], RowResults& out) {
  const float tau = b.p.tau[b.t.head];
  float x[A], y[A];  // scores of the last key tile (x) and of the tile before it (y)
  b.base[0] = b.base[1] = -INFINITY;
  b.sum[0] = b.sum[1] = 0;
  if constexpr (SCORES) b.scores = {};
  if constexpr (OWN > 1) b.issue_scores(y, 1);
  b.issue_scores(x, 0);
  if constexpr (OWN > 1) {  // this work overlaps with the product of the last tile
    wgmma_wait<1>();
    b.use_scores(y, 1);
  }
  wgmma_wait<0>();
  b.use_scores(x, 0);
  if constexpr (SCORES) b.scores.write(b, b.base, b.sum);
  if (b.lane == 0) barrier_arrive(&b.sm.q.empty[0]);
#pragma unroll 1
  for (int n = b.tiles.end; n < b.count; ++n) b.skip(b.use + n);
#pragma unroll 1
  for (int n = b.count - 1; n >= b.tiles.end; --n) b.skip(b.use + b.count + (b.count - 1 - n));

  float inverse[2], offset[2];
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    portable::finish_row_sum(b.p, b.t.head, b.base[h], b.sum[h]);
    const bool empty = b.keys(h).begin >= b.keys(h).end;
    out.lse[h] = empty ? -INFINITY : (b.base[h] + log2f(b.sum[h])) * kLn2;
    inverse[h] = empty ? 0 : 1 / b.sum[h];
    if (empty) b.base[h] = 0;
    offset[h] = portable::elastic_offset(b.p, b.keys(h), tau);
  }
  WeightAccumulator<T, N, STATS> accumulator{out, tau};
  uint32_t weights[OWN][N / 16][4];
  auto multiply = [&](float(&s)[A], int r) {
    float scale[2];
#pragma unroll
    for (int h = 0; h < 2; ++h) scale[h] = exp2_fast(b.bases[r][h] - b.base[h]) * inverse[h];
    accumulator.compute(s, scale, offset, [](float e, int) { return e; });
    const int tile = b.own(r);
    if (tau >= 0 && (tile < b.bare.begin || tile >= b.bare.end)) b.template hide<N>(s, b.origin + tile * N, 0);
    if (tile == 0 && b.origin == 0) accumulator.take_first(b, s, inverse);
    pack_weights<T, N>(weights[r], s);
    b.issue_sum(o, weights[r], r);
    accumulator.count(weights[r]);
  };
  multiply(x, 0);
  if constexpr (OWN > 1) {
    multiply(y, 1);
    wgmma_wait<1>();
    b.release(b.value_use(0));
  }
  wgmma_wait<0>();
  fence_registers(o);
  b.release(b.value_use(OWN - 1));
  accumulator.finish(b, o, b.base, inverse, offset);
}

template <typename T, bool STATS, bool SCORES>
__device__ void elastic_rows(Rows<T, SCORES>& b, float (&o)[D / 2], RowResults& out) {
  const int lo = b.tiles.begin, own = b.tiles.end - lo;
#pragma unroll 1
  for (int n = 0; n < lo; ++n) b.skip(b.use + n);
  switch (own) {
    case 1:
      own_rows<T, STATS, SCORES, 1>(b, o, out);
      break;
    case 2:
      own_rows<T, STATS, SCORES, 2>(b, o, out);
      break;
    default:  // the warpgroup has no key tile, because its rows do not exist or see no key; lo is 0
      if constexpr (SCORES) write_no_scores(b);
#pragma unroll
      for (int n = 0; n < D / 2; ++n) o[n] = 0;
#pragma unroll 1
      for (int n = 0; n < 2 * b.count; ++n) b.skip(b.use + n);
      if (b.count > 0 && b.lane == 0) barrier_arrive(&b.sm.q.empty[0]);
  }
#pragma unroll 1
  for (int n = lo - 1; n >= 0; --n) b.skip(b.use + b.count + (b.count - 1 - n));
}

template <typename T, bool STATS, bool SCORES>
__global__ void __launch_bounds__(THREADS, 1)
    forward(const __grid_constant__ Params p, const __grid_constant__ ForwardMaps maps, int tiles) {
  extern __shared__ char unaligned[];
  char* const memory = unaligned + (1024 - shared_address(unaligned) % 1024) % 1024;
  __shared__ SinglePassShared sm;
  char* const rows_out = memory + kQueryBytes + STAGES * kTileBytes;
  float* const table = reinterpret_cast<float*>(rows_out + kOutBytes);
  if (threadIdx.x == 0) {
    sm.q.init(8);  // number of arrivals per use: one for each of the eight consumer warps
    sm.kv.init(8);
    fence_barriers();
  }
  __syncthreads();
  const TileScheduler scheduler{tiles, p.batch * p.heads};
  const int group = warpgroup() - 1;
  if (group < 0) {  // producer warpgroup
    dealloc_registers<24>();
    if (threadIdx.x < 32) produce_tiles(p, maps, scheduler, sm, memory);
    return;
  }

  alloc_registers<240>();
  Tile& t = sm.tiles[threadIdx.x / 32];
  Rows<T, SCORES> b{p, t, sm};
  b.sq = descriptor_base(shared_address(memory) + group * 64 * 128);
  b.sk = descriptor_base(shared_address(memory) + kQueryBytes);
  b.sv = descriptor_base(shared_address(memory) + kQueryBytes, N * 128);
  b.use = 0;
  int tile, head, q_use = 0, shown = -1;
  for (int n = 0; scheduler.find(n, tile, head); ++n) {
    TileItem item;
    if (!item.start(p, tile, head, t)) continue;
    if (p.bias_window > 0 && t.head != shown) {
      asm volatile("bar.sync 1, 256;" ::: "memory");
      fill_table(p, t.head, table, kPad, threadIdx.x - 128, 256);
      asm volatile("bar.sync 1, 256;" ::: "memory");
      shown = t.head;
    }
    b.start(t.first + group * 64, p.bias_window > 0 ? table + kPad : nullptr);
    b.template cut<N>(item.span.begin);
    b.count = item.span.tiles;
    RowResults r;
    float o[D / 2];
    if (b.count > 0) sm.q.wait_full(q_use++);
    elastic_rows<T, STATS, SCORES>(b, o, r);
    b.use += 2 * b.count;

    // The rows are staged in 2 KiB of shared memory per warp, so that global stores write 16 bytes.
    const int warp = threadIdx.x / 32 % 4, lane = threadIdx.x % 32;
    char* const rows = rows_out + (group * 4 + warp) * 2048;
    __syncwarp();
#pragma unroll
    for (int i = 0; i < D / 8; ++i) {
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        *reinterpret_cast<uint32_t*>(rows + swizzled(lane / 4 + 8 * h, i) + lane % 4 * 4) =
            pack<T>(o[4 * i + 2 * h], o[4 * i + 2 * h + 1]);
      }
    }
    __syncwarp();
    const int first = t.first + group * 64 + warp * 16;
    T* const out = static_cast<T*>(p.out.data) + q_offset(p.out, t, t.head, first);
#pragma unroll
    for (int i = lane; i < 16 * (D / 8); i += 32) {
      if (first + i / 8 < t.q_length) {
        *reinterpret_cast<uint4*>(out + i / 8 * p.out.token + i % 8 * 8) =
            *reinterpret_cast<const uint4*>(rows + swizzled(i / 8, i % 8));
      }
    }
    write_results(p, b, r);
    __syncwarp();
  }
}

template <typename T, bool STATS, bool SCORES>
void launch(const Params& p, cudaStream_t stream) {
  const int tiles = tile_count(p, p.q_length, M);
  if (tiles * p.batch == 0) return;
  const int bytes = kBytes + table_entries(p.bias_window) * 4;
  int device = 0, processors = 0;
  check(cudaGetDevice(&device), "to return the current device");
  check(cudaDeviceGetAttribute(&processors, cudaDevAttrMultiProcessorCount, device),
        "to return the number of multiprocessors");
  const ForwardMaps maps{tensor_map(p, p.q, p.heads, p.q_length, 64), tensor_map(p, p.k, p.kv_heads, p.k_length, N),
                         tensor_map(p, p.v, p.kv_heads, p.k_length, N)};
  const int64_t items = int64_t{tiles} * p.batch * p.heads;
  cuda::launch("the Hopper forward", forward<T, STATS, SCORES>,
               static_cast<unsigned>(std::min<int64_t>(items, processors)), THREADS, bytes, stream, p, maps, tiles);
}

}  // namespace hopper::single_pass

bool fits_single_pass(const Params& p) {
  using namespace hopper::single_pass;
  return p.head_dim == D && takes_tau(p.normalizer) && p.k_length <= TILES * N;
}

void hopper_forward_single_pass(const Params& p, cudaStream_t stream) {
  with_half_type<__nv_bfloat16, __half>(p.dtype, [&](auto type) {
    using T = decltype(type);
    if (p.score_stats) return hopper::single_pass::launch<T, true, true>(p, stream);
    p.stats ? hopper::single_pass::launch<T, true, false>(p, stream)
            : hopper::single_pass::launch<T, false, false>(p, stream);
  });
}

}  // namespace lazy::kernels::cuda
