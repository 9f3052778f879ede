// The scores kernel and the values kernel, as templates over the implementation of the matrix products, and the
// functions that launch all decode kernels in order.
#pragma once
#include <algorithm>

#include "attention/cuda/decode_list.cuh"
#include "attention/cuda/decode_products.cuh"

namespace lazy::kernels::cuda::decoding {

// Scores kernel: computes the scores of one block of keys for one tile of rows. blockIdx.x enumerates the blocks of
// keys and the tiles of a sequence, blockIdx.y the sequences. Consecutive thread blocks process different tiles of the
// same keys, because the heads of a key are adjacent in the cache.
template <typename Products, PageAlignment PAGES>
__global__ void __launch_bounds__(kThreads, Products::kBlocks) make_scores(const __grid_constant__ Params p) {
  extern __shared__ __align__(16) char memory[];
  wait_for_launcher();  // until this call returns, kernels of the previous round may still read the memory for scores
  let_next_start();
  // Start with the last keys: only keys near the query have the distance bias, so their blocks take longest.
  const int block = blockIdx.x / p.round_tiles, warp = threadIdx.x / 32,
            index = (gridDim.x / p.round_tiles - 1 - block) * kWarps + warp;
  const RowTile t = make_tile(p, blockIdx.y, blockIdx.x - block * p.round_tiles);
  const int begin = t.sequence.first + index * p.part, count = min(t.sequence.end - begin, p.part);
  if (count <= 0) return;
  float2* const part = p.parts + t.row * p.max_parts + index;
  Products::template key_part<PAGES>(p, t, begin, count, memory + warp * p.key_bytes, part);
}

// Writes the states of the tile's rows to shared memory. If the states kernel ran, the states are loaded. Otherwise one
// warp per row computes the state, and the block that processes span 0 also stores it in global memory. Entries of
// `states` with an index of t.rows or above remain undefined.
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

// Values kernel: computes the weighted sums of V over one span of keys for one tile of rows. blockIdx.x enumerates the
// spans and tiles of a sequence (tiles vary fastest), blockIdx.y the sequences.
template <typename Products>
__global__ void __launch_bounds__(kThreads, Products::kBlocks) sum_values(const __grid_constant__ Params p) {
  extern __shared__ __align__(16) char memory[];
  __shared__ RowTile t;  // in shared memory, because registers are scarce
  __shared__ int span;
  __shared__ RowState states[kRows];
  __shared__ SpanStats stats[kWarps];
  const int warp = threadIdx.x / 32;
  if (threadIdx.x == 0) {
    span = blockIdx.x / p.round_tiles;
    // Programmatic dependent launch: this kernel starts only after all blocks of the previous kernel have passed
    // wait_for_launcher(), so all kernels before the previous one have ended, and the lengths can be read here.
    t = make_tile(p, blockIdx.y, blockIdx.x - span * p.round_tiles);
  }
  wait_for_launcher();
  let_next_start();
  __syncthreads();
  if (span >= span_count(p, t.sequence)) return;
  find_states(p, t, span, states);
  if (threadIdx.x < kWarps * kRows) stats[threadIdx.x / kRows].of_row[threadIdx.x % kRows] = {};
  __syncthreads();
  char* const mine = memory + warp * p.value_bytes;
  typename Products::Sums sums(p, t, mine);
  const int begin = t.sequence.first + (span * kWarps + warp) * p.scan, count = min(t.sequence.end - begin, p.scan);
  if (count > 0) {
    sum_keys(p, t, states, begin, count, mine + Products::kRingBytes, stats + warp, sums);
  }
  __syncthreads();  // wait until all warps have finished reading their lists, because `all` overwrites them
  auto* all = reinterpret_cast<float*>(memory);
  const int numbers = t.rows * p.value_dim;
  sums.store(p, t, all + warp * numbers);
  __syncthreads();
  float* to = p.sums + (t.row * p.max_spans + span) * p.value_dim;
  for (int n = threadIdx.x; n < numbers; n += kThreads) {
    float sum = 0;
    for (int w = 0; w < kWarps; ++w) sum += all[w * numbers + n];
    const int r = n / p.value_dim, d = n - r * p.value_dim;
    to[static_cast<int64_t>(r) * p.max_spans * p.value_dim + d] = sum / states[r].weight_scale;
  }
  if (p.stats && threadIdx.x < t.rows) {
    const int r = threadIdx.x;
    SpanStats::RowSum all{};
    for (int w = 0; w < kWarps; ++w) {
      all.mass += stats[w].of_row[r].mass;
      all.alive += stats[w].of_row[r].alive;
    }
    p.masses[(t.row + r) * p.max_spans + span] = {all.mass, __int_as_float(all.alive)};
  }
}

// Performs the work of the scores, states, values and sums kernels in one kernel, with one block per tile. blockIdx.x
// enumerates the tiles of a sequence, blockIdx.y the sequences. The results are bitwise equal to the results of the
// separate kernels. For the scores, each warp processes consecutive parts of the keys. For the values, it processes
// every kWarps-th piece of `scan` keys.
template <typename Products, PageAlignment PAGES>
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
  // Number of parts of the keys that each warp processes.
  const int parts = (part_count(p, t.sequence) + kWarps - 1) / kWarps;
  {
    const int index = warp * parts, begin = t.sequence.first + index * p.part;
    const int count = min(t.sequence.end - begin, parts * p.part);
    float2* const part = p.parts + t.row * p.max_parts + index;
    if (count > 0) Products::template key_part<PAGES>(p, t, begin, count, mine, part);
  }
  __syncthreads();
  find_states(p, t, 0, states);
  __syncthreads();
  const auto sums_of = [&](int piece) {  // address of the sums of one piece, shape (rows, value_dim)
    return p.sums + (t.row * kWarps * p.max_spans + piece * t.rows) * p.value_dim;
  };
  for (int n = threadIdx.x / 32;; n += kWarps) {  // the warp index is computed again here to save registers
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
  const int tiles = p.kv_heads * p.tiles;  // number of tiles per sequence
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
          p.pages_of == PageAlignment::none
              ? start<attend_tile<Products, PageAlignment::none>>(p, grid(1), kThreads, bytes, after_own, stream)
              : start<attend_tile<Products, PageAlignment::units>>(p, grid(1), kThreads, bytes, after_own, stream);
        }
        after_own = true;
        continue;
      }
      const auto scores = [&]<PageAlignment PAGES>() {
        start<make_scores<Products, PAGES>>(p, grid(blocks), kThreads, kWarps * p.key_bytes, after_own, stream);
      };
      switch (p.pages_of) {
        case PageAlignment::none:
          scores.template operator()<PageAlignment::none>();
          break;
        case PageAlignment::units:
          scores.template operator()<PageAlignment::units>();
          break;
        case PageAlignment::keys:
          scores.template operator()<PageAlignment::keys>();
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
