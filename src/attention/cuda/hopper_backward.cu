// Launches of the Hopper backward. The first kernel computes the row states, the second kernel computes dK, dV and the
// fp32 sums of dQ, and the third kernel converts these sums to d_q.
#include "attention/cuda/hopper_backward_keys.cuh"
#include "attention/cuda/launchers.h"

namespace lazy::kernels::cuda {

namespace hopper {

template <typename T, int D, RowSums SUMS>
void launch_backward(const Params& p, int partial_step, cudaStream_t stream) {
  using R = BackwardRowsShape<D>;
  using K = BackwardKeysShape<D, SUMS>;
  const BackwardMaps maps{tensor_map(p, p.q, p.heads, p.q_length, 64), tensor_map(p, p.d_out, p.heads, p.q_length, 64),
                          tensor_map(p, p.k, p.kv_heads, p.k_length, 64),
                          tensor_map(p, p.v, p.kv_heads, p.k_length, 64)};
  const int tiles = tile_count(p, p.q_length, R::M), key_tiles = tile_count(p, p.k_length, K::N);
  const int dq_tiles = tile_count(p, p.q_length, 64);
  const int row_bytes = R::bytes + R::table(p.bias_window) * 4, key_bytes = K::bytes(p.bias_window);
  if (p.dq_sum) {
    check(cudaMemsetAsync(p.dq_sum, 0, sizeof(float) * 64 * K::columns * dq_tiles * p.heads * p.batch, stream),
          "to clear the sums of d_q");
  }
  if constexpr (SUMS != RowSums::exact) {
    launch("the Hopper backward kernel for row sums",
           backward_sums<T, K::columns, SUMS == RowSums::softmax, StoreRowState>, dim3(dq_tiles * p.batch, p.heads),
           256, 0, stream, p, dq_tiles, partial_step);
  } else {
    launch("the Hopper backward kernel for query rows", backward_rows<T, D>, dim3(tiles * p.batch, p.heads), R::threads,
           row_bytes, stream, p, maps, tiles, dq_tiles, partial_step);
  }
  launch("the Hopper backward kernel for keys", backward_keys<T, D, SUMS>, dim3(key_tiles * p.batch, p.kv_heads),
         K::threads, key_bytes, stream, p, maps, key_tiles, dq_tiles);
  if (p.dq_sum) {
    launch("the Hopper backward kernel for d_q", finish_dq<T, K::columns>, dim3(dq_tiles * p.batch, p.heads), 256, 0,
           stream, p, dq_tiles);
  }
}

template <NormalizerFamily F, int D>
struct HopperBackward {
  static_assert(F == NormalizerFamily::exponential);
  static void launch(const Params& p, int partial_step, cudaStream_t stream) {
    with_half_type<__nv_bfloat16, __half>(p.dtype, [&](auto type) {
      using T = decltype(type);
      if (!has_rounded_sums(p)) {
        launch_backward<T, D, RowSums::exact>(p, partial_step, stream);
      } else if (takes_tau(p.normalizer)) {
        launch_backward<T, D, RowSums::elastic>(p, partial_step, stream);
      } else {
        launch_backward<T, D, RowSums::softmax>(p, partial_step, stream);
      }
    });
  }
};

}  // namespace hopper

BackwardLauncher hopper_backward(NormalizerFamily family, int64_t head_size) {
  return find_launcher<CudaKernel::hopper, BackwardLauncher, hopper::HopperBackward>(family, head_size);
}

}  // namespace lazy::kernels::cuda
