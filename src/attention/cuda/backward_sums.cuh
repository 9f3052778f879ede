// First kernel of the backward for problems in which each row's center can be computed from the output o of the
// forward, without a sweep over the keys. The center is the value that is subtracted from the gradients of the row's
// weights (weights.cuh):
//   SOFTMAX: center = dO . o            otherwise: center = dO . o - offset * (dO . alive_sum)
// SOFTMAX means that the normalizer has no offset. alive_sum is the sum of the rows of V whose weight is not zero. The
// 16-bit rounding of o and alive_sum is acceptable here, because the gradients are rounded to 16 bits too.
#pragma once
#include <cstring>

#include "attention/cuda/portable.cuh"

namespace lazy::kernels::cuda {

__device__ inline float widen(__nv_bfloat16 x) { return __bfloat162float(x); }
__device__ inline float widen(__half x) { return __half2float(x); }

template <typename T>
__device__ float dot8(const uint4& a, const uint4& b) {
  T x[8], y[8];
  memcpy(x, &a, 16);
  memcpy(y, &b, 16);
  float sum = 0;
#pragma unroll
  for (int n = 0; n < 8; ++n) sum = fmaf(widen(x[n]), widen(y[n]), sum);
  return sum;
}

// Values of a row from which the gradients of its scores are computed. `anchor` is the log-sum-exp of the scores in
// units of log2, `center` is the value that is subtracted from the gradients of the weights, and `offset` is the offset
// in weight = max(p + offset, 0). `alone` means that the row sees only one key and no sink. The probability p of this
// key is then 1 for every score, so the gradient of the score is zero.
struct BackwardRowState {
  float anchor, center, offset;
  bool alone;
};

// Computes the row states, with one block per tile of 64 rows. COLUMNS is a power of two that is not below the head
// size. Store::put stores the state of a row.
template <typename T, int COLUMNS, bool SOFTMAX, typename Store>
__global__ void __launch_bounds__(256) backward_sums(const Params p, int row_tiles, int partial_step) {
  constexpr int lanes = COLUMNS / 8;  // number of lanes that process a row
  __shared__ float warp_sums[2][8];
  Tile t;
  t.head = blockIdx.y;
  t.batch = blockIdx.x / row_tiles;
  if (!locate(p, blockIdx.x % row_tiles, 64, false, t)) return;
  const int part = threadIdx.x % lanes;
  float tau_sum = 0, sink_sum = 0;
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
    const bool alone = count == 1 && !takes_sink(p.normalizer);
    const float lse = p.lse[row_index(p, t, t.head, row)] * portable::kLog2e;
    const float offset = SOFTMAX ? 0 : portable::elastic_offset(p, keys, p.tau[t.head]);
    const float center = fmaf(-offset, alive, delta);
    Store::put(p, t, row_tiles, blockIdx.x % row_tiles, row, {lse == -INFINITY ? 0 : lse, center, offset, alone});
    if constexpr (!SOFTMAX) {
      tau_sum += p.per_visible ? alive / static_cast<float>(max(count, 1)) : alive;
      if (takes_sink(p.normalizer) && count > 0) {
        sink_sum -= exp2_fast(portable::scaled_sink(p, t.head) - lse) * center;
      }
    }
  }
  if constexpr (!SOFTMAX) {
    for (int d = 1; d < 32; d *= 2) {
      tau_sum += __shfl_xor_sync(~0u, tau_sum, d);
      sink_sum += __shfl_xor_sync(~0u, sink_sum, d);
    }
    if (threadIdx.x % 32 == 0) {
      warp_sums[0][threadIdx.x / 32] = tau_sum;
      warp_sums[1][threadIdx.x / 32] = sink_sum;
    }
    __syncthreads();
    if (threadIdx.x >= 2) return;
    float sum = 0;
    for (int n = 0; n < 8; ++n) sum += warp_sums[threadIdx.x][n];
    p.partial[(static_cast<int64_t>(threadIdx.x) * p.heads + t.head) * partial_step + blockIdx.x] = sum;
  }
}

}  // namespace lazy::kernels::cuda
