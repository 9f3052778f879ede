// Definitions shared by the portable forward kernels: tile shapes, epilogue and launch.
#pragma once
#include "attention/cuda/portable_rows.cuh"

namespace lazy::kernels::cuda::portable {

// Sizes of the tiles of the portable forward. ALIVE: the kernel also computes alive_sum and uses smaller tiles.
template <int D, bool ALIVE = false>
struct ForwardShape {
  static constexpr int MI = D > (ALIVE ? 64 : 128) ? 1 : 2, N = D == 256 || (ALIVE && D != 96) ? 32 : 64;
  static constexpr int warps = 4, threads = 32 * warps;
  static constexpr int M = 16 * MI * warps;
  static constexpr int bias_entries = M + N;  // number of entries in the table of positional biases of a tile
};

// Writes lse and stats of the warp's rows. `first` is the weight on key 0. `total` and `alive` are the calling lane's
// contributions to the sum of weights and to the number of nonzero weights; they are added over the lanes of a row
// here.
template <typename T, int D, typename S, bool CAPPED>
__device__ void finish_statistics(const RowSweep<T, D, S, CAPPED>& b, const float (&lse)[S::MI][2],
                                  const float (&first)[S::MI][2], const float (&total)[S::MI][2],
                                  const float (&alive)[S::MI][2]) {
  const Params& p = b.p;
#pragma unroll
  for (int m = 0; m < S::MI; ++m) {
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const float weights = quad_sum(total[m][h]), living = quad_sum(alive[m][h]);
      if (b.lane % 4 != 0 || b.row(m, h) >= b.t.q_length) continue;
      const int64_t index = row_index(p, b.t, b.t.head, b.row(m, h));
      if (p.lse) p.lse[index] = lse[m][h];
      if (p.stats) {
        const int64_t part = static_cast<int64_t>(p.batch) * p.heads * p.q_length;
        p.stats[index] = first[m][h];
        p.stats[part + index] = 1 - weights;
        p.stats[2 * part + index] = living;
      }
    }
  }
}

// Writes Params::score_stats. scores(m, h) must return the calling lane's partial sums for the row b.row(m, h).
template <typename T, int D, typename S, bool CAPPED, typename Scores>
__device__ void store_score_statistics(const RowSweep<T, D, S, CAPPED>& b, const Scores& scores) {
  const Params& p = b.p;
#pragma unroll
  for (int m = 0; m < S::MI; ++m) {
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      LaneScores all = scores(m, h);
      all.merge_lane(1);
      all.merge_lane(2);
      if (b.lane % 4 != 0 || b.row(m, h) >= b.t.q_length) continue;
      put_score_statistics(p, b.t, b.row(m, h), all.finish(b.keys[m][h].end - b.keys[m][h].begin));
    }
  }
}

// Launches a kernel of shape S. `bytes` is the dynamic shared memory per block.
template <typename S>
void launch_rows(void (*kernel)(Params, int), int bytes, const Params& p, cudaStream_t stream) {
  const int tiles = tile_count(p, p.q_length, S::M);
  launch("the portable forward", kernel, dim3(tiles * p.batch, p.heads), S::threads, bytes, stream, p, tiles);
}

}  // namespace lazy::kernels::cuda::portable
