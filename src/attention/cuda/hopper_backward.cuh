// Launches of the Hopper backward: rows, keys, then the fp32 sums of dQ become d_q.
#pragma once
#include "attention/cuda/hopper_backward_keys.cuh"
#include "attention/cuda/tensor_map.h"

namespace lazy::kernels::cuda::hopper {

template <typename T, int D>
void launch_backward(const Params& p, int partial_step, cudaStream_t stream) {
  using R = BackwardRowsShape<D>;
  using K = BackwardKeysShape<D>;
  const BackwardMaps maps{
      tensor_map(p, p.q, p.heads, p.q_length, 64), tensor_map(p, p.d_out, p.heads, p.q_length, 64),
      tensor_map(p, p.k, p.kv_heads, p.k_length, 128), tensor_map(p, p.v, p.kv_heads, p.k_length, 128)};
  const int tiles = tile_count(p, p.q_length, R::M), key_tiles = tile_count(p, p.k_length, K::N);
  const int dq_tiles = tile_count(p, p.q_length, 64);
  const int row_bytes = R::bytes + R::table(p.bias_window) * 4, key_bytes = K::bytes(p.bias_window);
  check(cudaFuncSetAttribute(backward_rows<T, D>, cudaFuncAttributeMaxDynamicSharedMemorySize, row_bytes),
        "the shared memory of the Hopper backward");
  check(cudaFuncSetAttribute(backward_keys<T, D>, cudaFuncAttributeMaxDynamicSharedMemorySize, key_bytes),
        "the shared memory of the Hopper backward");
  if (p.dq_sum) {
    check(cudaMemsetAsync(p.dq_sum, 0, sizeof(float) * 64 * D * dq_tiles * p.heads * p.batch, stream),
          "to clear the sums of d_q");
  }
  backward_rows<T, D><<<dim3(tiles * p.batch, p.heads), R::threads, row_bytes, stream>>>(p, maps, tiles, partial_step);
  check_launch("Hopper backward, rows");
  backward_keys<T, D><<<dim3(key_tiles * p.batch, p.kv_heads), K::threads, key_bytes, stream>>>(p, maps, key_tiles, dq_tiles);
  check_launch("Hopper backward, keys");
  if (p.dq_sum) {
    finish_dq<T, D><<<dim3(dq_tiles * p.batch, p.heads), 256, 0, stream>>>(p, dq_tiles);
    check_launch("Hopper backward, d_q");
  }
}

template <int D>
void run_backward(const Params& p, int partial_step, cudaStream_t stream) {
  if (p.dtype == DType::bf16) {
    launch_backward<__nv_bfloat16, D>(p, partial_step, stream);
  } else {
    launch_backward<__half, D>(p, partial_step, stream);
  }
}

}  // namespace lazy::kernels::cuda::hopper
