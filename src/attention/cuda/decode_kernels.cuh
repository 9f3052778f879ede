// The kernels that depend on how products are computed, scores and values, and the sequence of launches.
#pragma once
#include <algorithm>

#include "attention/cuda/decode_list.cuh"
#include "attention/cuda/decode_products.cuh"

namespace lazy::kernels::cuda::decoding {

// Grid: (blocks of keys, tiles of a sequence fastest, for neighbouring heads lie side by side in a cache; sequences).
template <typename Products, bool PAGED>
__global__ void __launch_bounds__(kThreads, Products::kBlocks) make_scores(const __grid_constant__ Params p) {
  extern __shared__ __align__(16) char memory[];
  let_next_start();
  // The last keys first: those near the query have the distance bias, take longest and must not come last.
  const int block = blockIdx.x / p.round_tiles, tile = blockIdx.x - block * p.round_tiles, warp = threadIdx.x / 32,
            index = (gridDim.x / p.round_tiles - 1 - block) * kWarps + warp;
  // Without a window, pages are asked for beside the length.
  NextPages pages;
  if (PAGED && p.window < 0) pages.load(p, p.round_batch + blockIdx.y, index * p.part, p.part);
  const RowTile t = make_tile(p, blockIdx.y, tile);
  const int begin = t.sequence.first + index * p.part, count = min(t.sequence.end - begin, p.part);
  if (PAGED && p.window >= 0) pages.load(p, t.batch, begin, count);
  if (count > 0) {
    float2* const part = p.parts + t.row * p.max_parts + index;
    Products::template key_part<PAGED>(p, t, begin, count, pages, memory + warp * p.key_bytes, part);
  }
  if (block != 0 || threadIdx.x != 0) return;
  wait_for_launcher();
  p.arrived[blockIdx.y * p.round_tiles + tile] = 0;
}

// States of the tile's rows, to shared memory; where no kernel made them, a warp a row, and span 0 keeps them. What
// stands beyond t.rows is never used.
__device__ inline void find_states(const Params& p, const RowTile& t, int span, RowState* states) {
  const int lane = threadIdx.x % 32;
  if (p.separate_states) {
    static_assert(sizeof(RowState) == 2 * sizeof(int4) && 2 * kRows <= kThreads);
    if (threadIdx.x < 2 * t.rows) {
      reinterpret_cast<int4*>(states)[threadIdx.x] =
          __ldcg(reinterpret_cast<const int4*>(p.states + t.row) + threadIdx.x);
    }
    return;
  }
  const int parts = part_count(p, t.sequence);
  for (int r = threadIdx.x / 32; r < t.rows; r += kWarps) {
    const float2 all = warp_merge(merge_parts(p.parts + (t.row + r) * p.max_parts, parts, lane, 32));
    if (lane != 0) continue;
    float lse;
    const RowState state = finish_state(p, t, r, all, lse);
    states[r] = state;
    if (span == 0) keep_state(p, t, r, state, lse);
  }
}

// The value of dimension d for row r of the tile.
__device__ inline void write_out(const Params& p, const RowTile& t, int r, int d, float x) {
  const int64_t at = t.batch * p.out.batch + t.query(p, r) * p.out.token + t.head(p, r) * p.out.head + d * p.out.dim;
  store(p.out.data, at, p.dtype, t.sequence.length < 0 ? NAN : x);
}

// Statistics of row r of the tile, by one warp.
__device__ inline void finish_stats(const Params& p, const RowTile& t, int r, int spans) {
  const int lane = threadIdx.x % 32;
  const int64_t row = t.row + r;
  float mass = 0;
  int alive = 0;
  for (int n = lane; n < spans; n += 32) {
    const float2 x = __ldcg(p.masses + row * p.max_spans + n);
    mass += x.x;
    alive += __float_as_int(x.y);
  }
  mass = warp_sum(mass);
  alive = warp_sum(alive);
  if (lane != 0) return;
  const bool bad = t.sequence.length < 0;
  const Keys keys = visible(p, max(t.sequence.length, 0), t.query(p, r));
  const float first = keys.begin == 0 && keys.end > 0 ? __ldcg(p.firsts + row) : 0;
  float released = 1 - mass;
  if (p.normalizer == Normalizer::softmax_sink && keys.begin < keys.end) {
    // The sink's own share, which may be far below one.
    const RowState* const state = p.states + row;
    released = expf(p.sink[t.head(p, r)] - __ldcg(&state->largest)) * __ldcg(&state->inverse);
  }
  const int64_t rows = static_cast<int64_t>(p.batch) * p.heads * p.q_length;
  p.stats[row] = bad ? NAN : first;
  p.stats[rows + row] = bad ? NAN : released;
  p.stats[2 * rows + row] = bad ? NAN : static_cast<float>(alive);
}

// Adds up the tile's spans, by a block. A thread has WIDE dimensions of a row; threads that are left over share the
// spans. The order of additions follows from the tile's shape and the spans alone. room: a place for each thread.
template <int WIDE>
__device__ void add_spans(const Params& p, const RowTile& t, int spans, float (*room)[WIDE]) {
  const int of_row = p.value_dim / WIDE, pieces = t.rows * of_row, groups = max(kThreads / pieces, 1);
  for (int first = 0; first < pieces; first += kThreads) {
    const int group = groups > 1 ? threadIdx.x / pieces : 0, piece = first + threadIdx.x - group * pieces;
    const int r = piece / of_row, d = (piece - r * of_row) * WIDE;
    const bool there = group < groups && piece < pieces;
    float sum[WIDE] = {};
    if (there) {
      const float* from = p.sums + (t.row + r) * p.max_spans * p.value_dim + d;
#pragma unroll 8
      for (int n = group; n < spans; n += groups) {
        if constexpr (WIDE == 4) {
          const float4 x = __ldcg(reinterpret_cast<const float4*>(from + static_cast<int64_t>(n) * p.value_dim));
          sum[0] += x.x, sum[1] += x.y, sum[2] += x.z, sum[3] += x.w;
        } else {
          sum[0] += __ldcg(from + static_cast<int64_t>(n) * p.value_dim);
        }
      }
    }
    if (groups > 1) {
      for (int i = 0; i < WIDE; ++i) room[threadIdx.x][i] = sum[i];
      __syncthreads();
      for (int n = 1; group == 0 && n < groups; ++n) {
        for (int i = 0; i < WIDE; ++i) sum[i] += room[n * pieces + piece][i];
      }
    }
    for (int i = 0; there && group == 0 && i < WIDE; ++i) write_out(p, t, r, d + i, sum[i]);
  }
}

// Grid: (spans, tiles of a sequence fastest; sequences).
template <typename Products>
__global__ void __launch_bounds__(kThreads, Products::kBlocks) sum_values(const __grid_constant__ Params p) {
  extern __shared__ __align__(16) char memory[];
  __shared__ RowTile t;  // not in registers, which are scarce
  __shared__ int span;
  __shared__ RowState states[kRows];
  __shared__ SpanStats stats[kWarps];
  __shared__ bool last;
  const int warp = threadIdx.x / 32;
  let_next_start();
  if (threadIdx.x == 0) {
    span = blockIdx.x / p.round_tiles;
    t = make_tile(p, blockIdx.y, blockIdx.x - span * p.round_tiles);
  }
  __syncthreads();
  if (span >= span_count(p, t.sequence)) return;  // the first one waits
  Products::Sums::prefetch_rows(p, t, span);
  wait_for_launcher();
  find_states(p, t, span, states);
  if (threadIdx.x < kWarps * kRows) stats[threadIdx.x / kRows].of_row[threadIdx.x % kRows] = {};
  __syncthreads();
  char* const mine = memory + warp * p.value_bytes;
  typename Products::Sums sums(p, t, mine);
  const auto [begin, end] = span_of_warp(p, t, span, warp);
  if (begin < end) sum_keys(p, t, states, begin, end - begin, mine + Products::kRingBytes, stats[warp], sums);
  __syncthreads();  // the lists are used up
  auto* all = reinterpret_cast<float*>(memory);
  const int numbers = t.rows * p.value_dim;
  sums.store(p, t, all + warp * numbers);
  __syncthreads();
  const int spans = span_count(p, t.sequence);
  float* to = p.sums + (t.row * p.max_spans + span) * p.value_dim;
  for (int n = threadIdx.x; n < numbers; n += kThreads) {
    float sum = 0;
    for (int w = 0; w < kWarps; ++w) sum += all[w * numbers + n];
    const int r = n / p.value_dim, d = n - r * p.value_dim;
    sum /= states[r].weight_scale;
    if (spans == 1) {
      write_out(p, t, r, d, sum);
    } else {
      to[static_cast<int64_t>(r) * p.max_spans * p.value_dim + d] = sum;
    }
  }
  if (p.stats && threadIdx.x < t.rows) {
    const int r = threadIdx.x;
    SpanStats::Row all{};
    for (int w = 0; w < kWarps; ++w) {
      all.mass += stats[w].of_row[r].mass;
      all.alive += stats[w].of_row[r].alive;
    }
    p.masses[(t.row + r) * p.max_spans + span] = {all.mass, __int_as_float(all.alive)};
  }
  if (spans > 1) {
    __threadfence();
    __syncthreads();
    if (threadIdx.x == 0) {
      last = atomicAdd(p.arrived + blockIdx.y * p.round_tiles + blockIdx.x - span * p.round_tiles, 1) == spans - 1;
    }
    __syncthreads();
    if (!last) return;
    __threadfence();
    static_assert(kWarps * list_bytes(1) >= kThreads * Products::kWide * 4);
    add_spans<Products::kWide>(p, t, spans, reinterpret_cast<float(*)[Products::kWide]>(memory));
  }
  if (!p.stats) return;
  __syncthreads();  // with one span, what is read was written here
  for (int r = warp; r < t.rows; r += kWarps) finish_stats(p, t, r, spans);
}

template <typename Products>
void launch(Params p, cudaStream_t stream) {
  const int tiles = p.kv_heads * p.tiles;  // of a sequence
  const int blocks = (p.columns + kWarps * p.part - 1) / (kWarps * p.part), tiles_at_once = p.round_tiles;
  bool after_own = p.after_kernel;
  for (p.round_batch = 0; p.round_batch < p.batch; p.round_batch += p.round_sequences) {
    const int sequences = std::min(p.round_sequences, p.batch - p.round_batch);
    for (p.round_tile = 0; p.round_tile < tiles; p.round_tile += tiles_at_once) {
      p.round_tiles = std::min(tiles_at_once, tiles - p.round_tile);
      const auto grid = [&](int of_tile) {
        return dim3(static_cast<unsigned>(of_tile) * static_cast<unsigned>(p.round_tiles),
                    static_cast<unsigned>(sequences));
      };
      if (p.block_table) {
        start<make_scores<Products, true>>(p, grid(blocks), kThreads, kWarps * p.key_bytes, after_own, stream);
      } else {
        start<make_scores<Products, false>>(p, grid(blocks), kThreads, kWarps * p.key_bytes, after_own, stream);
      }
      if (p.separate_states) launch_states(p, sequences, stream);
      if (p.score_stats) launch_score_statistics(p, sequences, stream);
      start<sum_values<Products>>(p, grid(p.max_spans), kThreads, kWarps * p.value_bytes, true, stream);
      after_own = true;
    }
  }
}

}  // namespace lazy::kernels::cuda::decoding
