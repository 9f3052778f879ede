// A row's state from the parts that the scores kernel leaves: softmax and its like, and sigmoid, which needs no sum.
#pragma once
#include "attention/cuda/decode_rows.cuh"

namespace lazy::kernels::cuda::decoding {

// Largest score and sum of exponentials relative to it. A NaN anywhere ends up in the sum.
__device__ inline float2 merge(float2 a, float2 b) {
  const float largest = fmaxf(a.x, b.x), base = largest == -INFINITY ? 0 : largest;
  return {largest, a.y * expf(a.x - base) + b.y * expf(b.x - base)};
}
__device__ inline float2 warp_merge(float2 x) {
  for (int step = 16; step > 0; step /= 2) {
    x = merge(x, {__shfl_xor_sync(~0u, x.x, step), __shfl_xor_sync(~0u, x.y, step)});
  }
  return x;
}

// Parts first, first + step, ... below `parts`.
__device__ inline float2 merge_parts(const float2* part, int parts, int first, int step) {
  constexpr int kAtOnce = 4;
  float2 all{-INFINITY, 0};
  for (int n = first; n < parts; n += kAtOnce * step) {
    float2 x[kAtOnce];
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i) {
      x[i] = n + i * step < parts ? __ldcg(part + n + i * step) : float2{-INFINITY, 0};
    }
    float largest = all.x;
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i) largest = fmaxf(largest, x[i].x);
    const float base = largest == -INFINITY ? 0 : largest;
    float sum = all.y * expf(all.x - base);
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i) sum += x[i].y * expf(x[i].x - base);
    all = {largest, sum};
  }
  return all;
}

// all: of the row's parts. lse: of the row, where it is wanted.
__device__ inline RowState finish_state(const Params& p, const RowTile& t, int r, float2 all, float& lse) {
  RowState state = make_state(p, t, r);
  lse = 0;
  if (p.normalizer == Normalizer::softmax_sink) all = merge(all, {p.sink[t.head(p, r)], 1});
  if (p.normalizer != Normalizer::sigmoid) {
    state.largest = all.x;
    state.inverse = 1 / all.y;
    lse = state.begin < state.end ? all.x + logf(all.y) : -INFINITY;
  }
  if (t.sequence.length < 0) lse = NAN;
  return state;
}

// By one thread.
__device__ inline void keep_state(const Params& p, const RowTile& t, int r, const RowState& state, float lse) {
  p.states[t.row + r] = state;
  if (p.lse) p.lse[t.row + r] = lse;
}

}  // namespace lazy::kernels::cuda::decoding
