// Launches of the Hopper backward: rows, keys, then the fp32 sums of dQ become d_q.
#pragma once
#include "attention/cuda/hopper_backward_delta.cuh"
#include "attention/cuda/hopper_backward_keys.cuh"
#include "attention/cuda/tensor_map.h"

namespace lazy::kernels::cuda::hopper {

// Up to this many keys softmax's centers are summed in fp32 too: with few keys one may hold nearly all of the mass of
// every row, and g - center is then nothing but rounding.
constexpr int kFewKeys = 256;

template <typename T, int D, bool SOFTMAX>
void launch_backward(const Params& p, int partial_step, cudaStream_t stream) {
  using R = BackwardRowsShape<D>;
  using K = BackwardKeysShape<D>;
  const auto keys = backward_keys<T, D, SOFTMAX>;
  const BackwardMaps maps{tensor_map(p, p.q, p.heads, p.q_length, 64), tensor_map(p, p.d_out, p.heads, p.q_length, 64),
                          tensor_map(p, p.k, p.kv_heads, p.k_length, 64),
                          tensor_map(p, p.v, p.kv_heads, p.k_length, 64)};
  const int tiles = tile_count(p, p.q_length, R::M), key_tiles = tile_count(p, p.k_length, K::N);
  const int dq_tiles = tile_count(p, p.q_length, 64);
  const int row_bytes = R::bytes + R::table(p.bias_window) * 4, key_bytes = K::bytes(p.bias_window);
  check(cudaFuncSetAttribute(keys, cudaFuncAttributeMaxDynamicSharedMemorySize, key_bytes),
        "the shared memory of the Hopper backward");
  if (p.dq_sum) {
    check(cudaMemsetAsync(p.dq_sum, 0, sizeof(float) * 64 * D * dq_tiles * p.heads * p.batch, stream),
          "to clear the sums of d_q");
  }
  if constexpr (SOFTMAX) {
    backward_delta<T, D><<<dim3(dq_tiles * p.batch, p.heads), 256, 0, stream>>>(p, dq_tiles);
  } else {
    check(cudaFuncSetAttribute(backward_rows<T, D>, cudaFuncAttributeMaxDynamicSharedMemorySize, row_bytes),
          "the shared memory of the Hopper backward");
    backward_rows<T, D>
        <<<dim3(tiles * p.batch, p.heads), R::threads, row_bytes, stream>>>(p, maps, tiles, dq_tiles, partial_step);
  }
  check_launch("Hopper backward, rows");
  keys<<<dim3(key_tiles * p.batch, p.kv_heads), K::threads, key_bytes, stream>>>(p, maps, key_tiles, dq_tiles);
  check_launch("Hopper backward, keys");
  if (p.dq_sum) {
    finish_dq<T, D><<<dim3(dq_tiles * p.batch, p.heads), 256, 0, stream>>>(p, dq_tiles);
    check_launch("Hopper backward, d_q");
  }
}

template <typename T, int D>
void launch_backward(const Params& p, int partial_step, cudaStream_t stream) {
  const bool sums_in_fp32 = p.d_sink || p.bias_slabs || !p.out.data || p.k_length <= kFewKeys;
  if (p.normalizer == Normalizer::elastic || sums_in_fp32) {
    launch_backward<T, D, false>(p, partial_step, stream);
  } else {
    launch_backward<T, D, true>(p, partial_step, stream);
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
