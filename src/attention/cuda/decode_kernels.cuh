// The kernels that depend on how products are computed, scores and values, and the sequence of launches.
#pragma once
#include <algorithm>

#include "attention/cuda/decode_list.cuh"
#include "attention/cuda/decode_products.cuh"

namespace lazy::kernels::cuda::decoding {

// A tile's part of keys, by a warp.
template <typename Products, Pages PAGES>
__device__ void score_part(const Params& p, const RowTile& t, int index, char* memory) {
  const int begin = t.sequence.first + index * p.part, count = min(t.sequence.end - begin, p.part);
  if (count <= 0) return;
  Products::template key_part<PAGES>(p, t, begin, count, memory, p.parts + t.row * p.max_parts + index);
}

// Grid: (blocks of keys, tiles of a sequence fastest, for neighbouring heads lie side by side in a cache; sequences).
template <typename Products, Pages PAGES>
__global__ void __launch_bounds__(kThreads, Products::kBlocks) make_scores(const __grid_constant__ Params p) {
  extern __shared__ __align__(16) char memory[];
  wait_for_launcher();  // an earlier round's scores are used up
  let_next_start();
  // The last keys first: those near the query have the distance bias, take longest and must not come last.
  const int block = blockIdx.x / p.round_tiles, warp = threadIdx.x / 32,
            index = (gridDim.x / p.round_tiles - 1 - block) * kWarps + warp;
  score_part<Products, PAGES>(p, make_tile(p, blockIdx.y, blockIdx.x - block * p.round_tiles), index,
                              memory + warp * p.key_bytes);
}

// States of the tile's rows, to shared memory, by a group of kThreads threads; where no kernel made them, a warp a row,
// and span 0 keeps them. What stands beyond t.rows is never used.
__device__ inline void find_states(const Params& p, const RowTile& t, int span, RowState* states) {
  const int thread = threadIdx.x % kThreads, lane = threadIdx.x % 32;
  if (p.separate_states) {
    static_assert(sizeof(RowState) == 2 * sizeof(int4) && 2 * kRows <= kThreads);
    if (thread < 2 * t.rows) {
      reinterpret_cast<int4*>(states)[thread] = __ldcg(reinterpret_cast<const int4*>(p.states + t.row) + thread);
    }
    return;
  }
  const int parts = part_count(p, t.sequence);
  for (int r = thread / 32; r < t.rows; r += kWarps) {
    const float2 all = warp_merge(merge_parts(p.parts + (t.row + r) * p.max_parts, parts, lane, 32));
    if (lane != 0) continue;
    float lse;
    const RowState state = finish_state(p, t, r, all, lse);
    states[r] = state;
    if (span == 0) keep_state(p, t, r, state, lse);
  }
}

// Shared memory of a span's threads; the tile is not in registers, which are scarce.
struct SpanRoom {
  RowTile t;
  int span;
  RowState states[kRows];
  SpanStats stats[kWarps];
};

// Span room.span of the tile room.t, if it is there, by a group of kThreads threads. All groups of a block call it
// alike, as they share its barriers. PLAIN: an exponential normalizer and no statistics.
template <typename Products, bool PLAIN = false>
__device__ void sum_span(const Params& p, SpanRoom& room, bool there, char* memory) {
  const int thread = threadIdx.x % kThreads, warp = thread / 32, span = room.span;
  const RowTile& t = room.t;
  if (there) {
    find_states(p, t, span, room.states);
    if (thread < kWarps * kRows) room.stats[thread / kRows].of_row[thread % kRows] = {};
  }
  __syncthreads();
  char* const mine = memory + warp * p.value_bytes;
  typename Products::Sums sums(p, t, mine);
  const int begin = t.sequence.first + (span * kWarps + warp) * p.scan, count = min(t.sequence.end - begin, p.scan);
  if (there && count > 0) {
    const auto stats = [&] {
      if constexpr (PLAIN) {
        return nullptr;
      } else {
        return room.stats + warp;
      }
    }();
    sum_keys<PLAIN>(p, t, room.states, begin, count, mine + Products::kRingBytes, stats, sums);
  }
  __syncthreads();  // the lists are used up
  auto* all = reinterpret_cast<float*>(memory);
  const int numbers = t.rows * p.value_dim;
  if (there) sums.store(p, t, all + warp * numbers);
  __syncthreads();
  if (!there) return;
  float* to = p.sums + (t.row * p.max_spans + span) * p.value_dim;
  for (int n = thread; n < numbers; n += kThreads) {
    float sum = 0;
    for (int w = 0; w < kWarps; ++w) sum += all[w * numbers + n];
    const int r = n / p.value_dim, d = n - r * p.value_dim;
    to[static_cast<int64_t>(r) * p.max_spans * p.value_dim + d] = sum / room.states[r].weight_scale;
  }
  if (!PLAIN && p.stats && thread < t.rows) {
    const int r = thread;
    SpanStats::Row all{};
    for (int w = 0; w < kWarps; ++w) {
      all.mass += room.stats[w].of_row[r].mass;
      all.alive += room.stats[w].of_row[r].alive;
    }
    p.masses[(t.row + r) * p.max_spans + span] = {all.mass, __int_as_float(all.alive)};
  }
}

// Grid: (spans, tiles of a sequence fastest; sequences).
template <typename Products>
__global__ void __launch_bounds__(kThreads, Products::kBlocks) sum_values(const __grid_constant__ Params p) {
  extern __shared__ __align__(16) char memory[];
  __shared__ SpanRoom room;
  if (threadIdx.x == 0) {
    room.span = blockIdx.x / p.round_tiles;
    // The kernel before has begun, so what came before that has ended: lengths may be read.
    room.t = make_tile(p, blockIdx.y, blockIdx.x - room.span * p.round_tiles);
  }
  wait_for_launcher();
  let_next_start();
  __syncthreads();
  if (room.span < span_count(p, room.t.sequence)) sum_span<Products>(p, room, true, memory);
}

// Grid: (tiles of a sequence, sequences). The numbers are those of the kernels one by one: a warp has some parts one
// after the other, then every kWarps-th of the pieces of `scan` keys.
template <typename Products, Pages PAGES>
__global__ void __launch_bounds__(kThreads, Products::kBlocks) attend_tile(const __grid_constant__ Params p) {
  extern __shared__ __align__(16) char memory[];
  __shared__ RowTile t;
  __shared__ RowState states[kRows];
  const int warp = threadIdx.x / 32;
  wait_for_launcher();
  let_next_start();
  if (threadIdx.x == 0) t = make_tile(p, blockIdx.y, blockIdx.x);
  __syncthreads();
  char* const mine = memory + warp * p.tile_bytes;
  const int parts = (part_count(p, t.sequence) + kWarps - 1) / kWarps;  // of a warp
  {
    const int index = warp * parts, begin = t.sequence.first + index * p.part;
    const int count = min(t.sequence.end - begin, parts * p.part);
    float2* const part = p.parts + t.row * p.max_parts + index;
    if (count > 0) Products::template key_part<PAGES>(p, t, begin, count, mine, part);
  }
  __syncthreads();
  find_states(p, t, 0, states);
  __syncthreads();
  const auto sums_of = [&](int piece) {  // (rows, value_dim)
    return p.sums + (t.row * kWarps * p.max_spans + piece * t.rows) * p.value_dim;
  };
  for (int n = threadIdx.x / 32;; n += kWarps) {  // with few registers
    const int begin = t.sequence.first + n * p.scan, count = min(t.sequence.end - begin, p.scan);
    if (count <= 0) break;
    typename Products::Sums own(p, t, mine);
    sum_keys(p, t, states, begin, count, mine + Products::kRingBytes, nullptr, own);
    own.store(p, t, sums_of(n));
  }
  __syncthreads();
  const int numbers = t.rows * p.value_dim, pieces = (t.sequence.end - t.sequence.first + p.scan - 1) / p.scan;
  const int groups = kSumThreads / p.value_dim, spans = span_count(p, t.sequence);
  for (int n = threadIdx.x; n < numbers; n += kThreads) {
    const int r = n / p.value_dim, d = n - r * p.value_dim;
    float x = 0;
    for (int group = 0; group < min(groups, spans); ++group) {
      float of_group = 0;
      for (int span = group; span < spans; span += groups) {
        float sum = 0;
#pragma unroll
        for (int i = 0; i < kWarps; ++i) {
          const int piece = span * kWarps + i;
          sum += piece < pieces ? __ldcg(sums_of(piece) + n) : 0;
        }
        of_group += sum / states[r].weight_scale;
      }
      x += of_group;
    }
    store_out(p, t.batch, t.head(p, r), t.query(p, r), d, t.sequence, x);
  }
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
      if (p.by_tile) {
        if constexpr (Products::kWholeTiles) {
          const int bytes = kWarps * p.tile_bytes;
          p.pages_of == Pages::none
              ? start<attend_tile<Products, Pages::none>>(p, grid(1), kThreads, bytes, after_own, stream)
              : start<attend_tile<Products, Pages::units>>(p, grid(1), kThreads, bytes, after_own, stream);
        }
        after_own = true;
        continue;
      }
      const auto scores = [&]<Pages PAGES>() {
        start<make_scores<Products, PAGES>>(p, grid(blocks), kThreads, kWarps * p.key_bytes, after_own, stream);
      };
      switch (p.pages_of) {
        case Pages::none:
          scores.template operator()<Pages::none>();
          break;
        case Pages::units:
          scores.template operator()<Pages::units>();
          break;
        case Pages::keys:
          scores.template operator()<Pages::keys>();
          break;
      }
      if (p.separate_states) launch_states(p, sequences, stream);
      if (p.score_stats) launch_score_statistics(p, sequences, stream);
      start<sum_values<Products>>(p, grid(p.max_spans), kThreads, kWarps * p.value_bytes, true, stream);
      after_own = true;
    }
  }
  if (!p.by_tile) launch_sums(p, stream);
}

}  // namespace lazy::kernels::cuda::decoding
