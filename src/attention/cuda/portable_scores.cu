// Computes score_stats for problems whose tensor-core forward does not write them. The kernel sweeps over the keys once
// and does not load V.
#include "attention/cuda/launchers.h"
#include "attention/cuda/portable_forward_rows.cuh"

namespace lazy::kernels::cuda {

namespace portable {

template <typename T, int D>
struct ScoreSweep {
  using S = ForwardShape<D>;
  // Offset of the bias tables in shared memory, in bytes. The queries and keys precede the tables.
  static constexpr int keys_at = (S::M + 2 * S::N) * D * 2;
  static constexpr int bytes = keys_at + 2 * S::bias_entries * 4;
};

template <typename T, int D, bool CAPPED>
__global__ void __launch_bounds__(ForwardShape<D>::threads) score_statistics(const Params p, int tiles) {
  using S = ForwardShape<D>;
  extern __shared__ __align__(128) char memory[];
  RowSweep<T, D, S, CAPPED> b{p, kLog2e};
  if (!b.start(memory, 0, tiles)) return;
  b.add = reinterpret_cast<float*>(memory + ScoreSweep<T, D>::keys_at);
  LaneScores sums[S::MI][2];
  // Assign explicitly: nvcc 13.0 applies the default member initializers only to the first and the last element of an
  // array of arrays.
#pragma unroll
  for (int m = 0; m < S::MI; ++m) sums[m][0] = sums[m][1] = LaneScores();
  b.sweep(false, [&](int key, int stage) {
    float s[S::MI][S::N / 8][4];
    const float c = b.scores(s, key, stage);
#pragma unroll
    for (int m = 0; m < S::MI; ++m) {
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        sums[m][h].template add<S::N / 4>(c, [&](int n) { return s[m][n / 2][2 * h + n % 2]; });
      }
    }
  });
  store_score_statistics(b, [&](int m, int h) { return sums[m][h]; });
}

template <int D>
void launch_scores(const Params& p, cudaStream_t stream) {
  with_half_type<__nv_bfloat16, __half>(p.dtype, [&](auto type) {
    using T = decltype(type);
    with_softcap(p, [&](auto capped) {
      launch_rows<ForwardShape<D>>(score_statistics<T, D, capped>, ScoreSweep<T, D>::bytes, p, stream);
    });
  });
}

}  // namespace portable

void score_statistics(const Params& p, cudaStream_t stream) {
  const bool found = [&]<size_t... I>(std::index_sequence<I...>) {
    return ((p.head_dim == kTensorCoreHeadSizes[I] &&
             (portable::launch_scores<kTensorCoreHeadSizes[I]>(p, stream), true)) ||
            ...);
  }
  (std::make_index_sequence<std::size(kTensorCoreHeadSizes)>());
  if (!found) throw std::logic_error("score statistics do not support head size " + std::to_string(p.head_dim));
}

}  // namespace lazy::kernels::cuda
