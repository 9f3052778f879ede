// The sums of a row's spans.
#pragma once
#include "attention/cuda/decode_rows.cuh"

namespace lazy::kernels::cuda::decoding {

// Of one of all rows, by a block of any size. A group of sums takes every groups-th span; then the groups are added up.
// `sums`: kSumThreads of them, in shared memory.
__device__ inline void add_spans_of(const Params& p, int row, float* sums) {
  const int query = row % p.q_length, head = row / p.q_length % p.heads, batch = row / p.q_length / p.heads;
  const int groups = kSumThreads / p.value_dim, numbers = groups * p.value_dim;
  const Sequence s = read_sequence(p, batch);
  const int spans = span_count(p, s);
  for (int n = threadIdx.x; n < numbers; n += blockDim.x) {
    const int group = n / p.value_dim, d = n - group * p.value_dim;
    const float* from = p.sums + static_cast<int64_t>(row) * p.max_spans * p.value_dim + d;
    float sum = 0;
#pragma unroll 8
    for (int span = group; span < spans; span += groups) {
      sum += __ldcg(from + static_cast<int64_t>(span) * p.value_dim);
    }
    sums[n] = sum;
  }
  __syncthreads();
  for (int d = threadIdx.x; d < p.value_dim; d += blockDim.x) {
    float sum = 0;
    for (int group = 0; group < groups; ++group) sum += sums[group * p.value_dim + d];
    store_out(p, batch, head, query, d, s, sum);
  }
}

// The same by one thread, of four neighbouring dimensions of a row of D and at most MOST spans.
template <int D, int MOST>
__device__ float4 sum_of_spans(const Params& p, int64_t row, int spans, int d) {
  constexpr int kGroups = kSumThreads / D;
  const float* from = p.sums + row * p.max_spans * D + d;
  float4 span[MOST];
#pragma unroll
  for (int n = 0; n < MOST; ++n) {
    span[n] = n < spans ? __ldcg(reinterpret_cast<const float4*>(from + n * D)) : float4{};
  }
  const auto add = [](const float4& x, const float4& y) { return float4{x.x + y.x, x.y + y.y, x.z + y.z, x.w + y.w}; };
  float4 all{};
#pragma unroll
  for (int group = 0; group < min(kGroups, MOST); ++group) {
    float4 of_group{};
#pragma unroll
    for (int n = group; n < MOST; n += kGroups) of_group = add(of_group, span[n]);
    all = add(all, of_group);
  }
  return all;
}

}  // namespace lazy::kernels::cuda::decoding
