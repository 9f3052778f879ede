// Shared by the portable forward kernels: tile shapes, epilogue, launch.
#pragma once
#include "attention/cuda/portable_rows.cuh"

namespace lazy::kernels::cuda::portable {

template <int D>
struct ForwardShape {
  static constexpr int MI = D == 256 ? 1 : 2, N = D == 256 ? 32 : 64, warps = 4, threads = 32 * warps;
  static constexpr int M = 16 * MI * warps;
  static constexpr int bias_entries = M + N;  // entries of a tile's table of what is added by distance
};

// Writes outputs, lse and statistics: the weight of key 0, and each lane's part of the sum of weights and of alive
// pairs.
template <typename T, int D>
__device__ void finish_rows(RowSweep<T, D, ForwardShape<D>>& b, char* memory,
                            const float (&o)[ForwardShape<D>::MI][D / 8][4], const float (&lse)[ForwardShape<D>::MI][2],
                            const float (&first)[ForwardShape<D>::MI][2], const float (&total)[ForwardShape<D>::MI][2],
                            const float (&alive)[ForwardShape<D>::MI][2]) {
  const Params& p = b.p;
  b.store(memory, p.out, o, 1);
#pragma unroll
  for (int m = 0; m < ForwardShape<D>::MI; ++m) {
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

template <typename T, int D>
void launch_rows(void (*kernel)(Params, int), const Params& p, cudaStream_t stream) {
  using S = ForwardShape<D>;
  constexpr int bytes = RowSweep<T, D, S>::bytes;
  const int tiles = tile_count(p, p.q_length, S::M);
  launch("the portable forward", kernel, dim3(tiles * p.batch, p.heads), S::threads, bytes, stream, p, tiles);
}

}  // namespace lazy::kernels::cuda::portable
