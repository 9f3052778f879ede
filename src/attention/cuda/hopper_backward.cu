// Launches of the Hopper backward: rows, keys, then the fp32 sums of dQ become d_q.
#include "attention/cuda/hopper_backward_keys.cuh"
#include "attention/cuda/launchers.h"

namespace lazy::kernels::cuda {

namespace hopper {

template <typename T>
__device__ float dot8(const uint4& a, const uint4& b) {
  const T *x = reinterpret_cast<const T*>(&a), *y = reinterpret_cast<const T*>(&b);
  float sum = 0;
#pragma unroll
  for (int n = 0; n < 8; ++n) sum = fmaf(static_cast<float>(x[n]), static_cast<float>(y[n]), sum);
  return sum;
}

// First kernel of the Hopper backward where it need not sweep over keys: softmax's center = dO . o if no fp32 gradients
// (bias, sink) are wanted, elastic's center = dO . o - offset e with e = dO . alive_sum. The rounding of o and
// alive_sum is of the size of the 16-bit gradients' own. A block a tile of 64 rows.
template <typename T, int D, bool SOFTMAX>
__global__ void __launch_bounds__(256)
    backward_delta(const __grid_constant__ Params p, int row_tiles, int partial_step) {
  constexpr int lanes = D / 8;  // of a row
  __shared__ float warp_sums[8];
  Tile t;
  t.head = blockIdx.y;
  t.batch = blockIdx.x / row_tiles;
  if (!locate(p, blockIdx.x % row_tiles, 64, false, t)) return;
  const int part = threadIdx.x % lanes;
  float tau_sum = 0;
#pragma unroll
  for (int n = 0; n < 64 * lanes / 256; ++n) {
    const int row = t.first + threadIdx.x / lanes + n * (256 / lanes);
    const bool there = row < t.q_length;
    auto read = [&](const Tensor& x) {
      return reinterpret_cast<const uint4*>(static_cast<const T*>(x.data) + q_offset(x, t, t.head, row))[part];
    };
    float delta = 0, alive = 0;
    if (there && part * 8 < p.head_dim) {
      const uint4 d_out = read(p.d_out);
      delta = dot8<T>(read(p.out), d_out);
      if constexpr (!SOFTMAX) alive = dot8<T>(read(p.alive_sum), d_out);
    }
#pragma unroll
    for (int d = 1; d < lanes; d *= 2) {
      delta += __shfl_xor_sync(~0u, delta, d);
      if constexpr (!SOFTMAX) alive += __shfl_xor_sync(~0u, alive, d);
    }
    if (!there || part != 0) continue;
    const Keys keys = visible(p, t, row);
    const int count = keys.end - keys.begin;
    // A row's only key has p = 1 whatever its score: its gradient is exactly zero.
    const bool alone = count == 1 && p.normalizer != Normalizer::softmax_sink;
    const float lse = p.lse[row_index(p, t, t.head, row)] * kLog2e;
    float* const state = row_state(p, t, t.head, row_tiles, blockIdx.x % row_tiles) + row - t.first;
    state[0] = lse == -INFINITY ? 0 : lse;
    state[64] = alone ? 0 : 1;
    if constexpr (SOFTMAX) {
      state[128] = alone ? 0 : delta;
    } else {
      const float offset = portable::elastic_offset(p, keys, p.tau[t.head]);
      state[128] = alone ? 0 : fmaf(-offset, alive, delta);
      state[192] = offset + alone;
      tau_sum += p.per_visible ? alive / static_cast<float>(max(count, 1)) : alive;
    }
  }
  if constexpr (!SOFTMAX) {
    for (int d = 1; d < 32; d *= 2) tau_sum += __shfl_xor_sync(~0u, tau_sum, d);
    if (threadIdx.x % 32 == 0) warp_sums[threadIdx.x / 32] = tau_sum;
    __syncthreads();
    if (threadIdx.x != 0) return;
    float sum = 0;
    for (int n = 0; n < 8; ++n) sum += warp_sums[n];
    p.partial[static_cast<int64_t>(t.head) * partial_step + blockIdx.x] = sum;
  }
}

// SWEEP: the first kernel sweeps over the keys.
template <typename T, int D, bool SOFTMAX, bool SWEEP>
void launch_backward(const Params& p, int partial_step, cudaStream_t stream) {
  using R = BackwardRowsShape<D>;
  using K = BackwardKeysShape<D>;
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
  if constexpr (!SWEEP) {
    launch("the Hopper backward, rows", backward_delta<T, K::columns, SOFTMAX>, dim3(dq_tiles * p.batch, p.heads), 256,
           0, stream, p, dq_tiles, partial_step);
  } else {
    launch("the Hopper backward, rows", backward_rows<T, D>, dim3(tiles * p.batch, p.heads), R::threads, row_bytes,
           stream, p, maps, tiles, dq_tiles, partial_step);
  }
  launch("the Hopper backward, keys", backward_keys<T, D, SOFTMAX>, dim3(key_tiles * p.batch, p.kv_heads), K::threads,
         key_bytes, stream, p, maps, key_tiles, dq_tiles);
  if (p.dq_sum) {
    launch("the Hopper backward, d_q", finish_dq<T, K::columns>, dim3(dq_tiles * p.batch, p.heads), 256, 0, stream, p,
           dq_tiles);
  }
}

template <NormalizerFamily F, int D>
struct HopperBackward {
  static_assert(F == NormalizerFamily::exponential);
  static void launch(const Params& p, int partial_step, cudaStream_t stream) {
    const bool sums_in_fp32 = p.d_sink || p.bias_slabs || !p.out.data || p.k_length <= kFewKeys;
    with_half_type<__nv_bfloat16, __half>(p.dtype, [&](auto type) {
      using T = decltype(type);
      if (p.alive_sum.data && p.out.data && writes_alive_sum(p)) {
        launch_backward<T, D, false, false>(p, partial_step, stream);
      } else if (p.normalizer == Normalizer::elastic || sums_in_fp32) {
        launch_backward<T, D, false, true>(p, partial_step, stream);
      } else {
        launch_backward<T, D, true, false>(p, partial_step, stream);
      }
    });
  }
};

}  // namespace hopper

BackwardLauncher hopper_backward(NormalizerFamily family, int64_t head_size) {
  return find_launcher<CudaKernel::hopper, BackwardLauncher, hopper::HopperBackward>(family, head_size);
}

}  // namespace lazy::kernels::cuda
