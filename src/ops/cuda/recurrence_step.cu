// One decode step (one token) of the linear recurrences and of their short convolutions.
#include <algorithm>

#include "attention/cuda/decode_memory.cuh"
#include "attention/cuda/decode_params.h"
#include "ops/cuda/launch.h"
#include "ops/cuda/step.h"
#include "ops/cuda/vector.cuh"

namespace lazy::ops::cuda {

namespace {

namespace decoding = kernels::cuda::decoding;

constexpr int kThreads = 256, kWarps = kThreads / 32;
constexpr int kQuads = 4;                 // groups of four state columns per block; each thread has four columns
constexpr int kRows = kThreads / kQuads;  // number of rows of the state that a block processes at the same time

// Partial sums of a thread over its rows of the state S: k S and q S for four columns each, and the scalar q k.
struct PartialSums {
  float of[9] = {};
};

// Each block has 16 columns of a head's state in registers; the state is read once and written once. The next state is
// S' = a S + k u^T with the decay a and the written value u. Thus q S' = a q S + (q k) u, and all sums over the rows
// can be computed in one pass.
template <typename T, int HELD>
__global__ void __launch_bounds__(kThreads) recur(const __grid_constant__ RecurrenceStep p) {
  __shared__ PartialSums room[kWarps][kQuads];
  decoding::let_next_start();
  decoding::wait_for_launcher();
  const int quad = threadIdx.x % kQuads, row = threadIdx.x / kQuads, warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const int keys = static_cast<int>(p.key_dim), values = static_cast<int>(p.value_dim);
  const int64_t batch = p.first + blockIdx.z, head = blockIdx.y, place = batch * p.heads + head;
  const int64_t group = head / (p.heads / p.groups);
  const int column = (blockIdx.x * kQuads + quad) * 4;
  const bool inside = column < values;
  const T* q = static_cast<const T*>(p.q) + batch * p.q_batch + group * p.q_head;
  const T* k = static_cast<const T*>(p.k) + batch * p.k_batch + group * p.k_head;
  const int64_t corner = place * keys * values + column;

  float4 held[HELD];
  float key[HELD];
  PartialSums sums;
#pragma unroll
  for (int n = 0; n < HELD; ++n) {
    const int r = row + n * kRows;
    const bool there = r < keys;
    held[n] = there && inside && p.state ? *reinterpret_cast<const float4*>(p.state + corner + int64_t{r} * values)
                                         : float4{0, 0, 0, 0};
    key[n] = there ? to_float(k[r]) : 0;
  }
#pragma unroll
  for (int n = 0; n < HELD; ++n) {
    const int r = row + n * kRows;
    const float query = r < keys ? to_float(q[r]) : 0;
    const float state[4] = {held[n].x, held[n].y, held[n].z, held[n].w};
#pragma unroll
    for (int c = 0; c < 4; ++c) {
      sums.of[c] = fmaf(key[n], state[c], sums.of[c]);
      sums.of[4 + c] = fmaf(query, state[c], sums.of[4 + c]);
    }
    sums.of[8] = fmaf(query, key[n], sums.of[8]);
  }
#pragma unroll
  for (int c = 0; c < 9; ++c) {
#pragma unroll
    for (int step = kQuads; step < 32; step *= 2) sums.of[c] += __shfl_xor_sync(0xffffffffu, sums.of[c], step);
  }
  if (lane < kQuads) room[warp][lane] = sums;
  __syncthreads();
#pragma unroll
  for (int c = 0; c < 9; ++c) {
    sums.of[c] = room[0][quad].of[c];
#pragma unroll
    for (int w = 1; w < kWarps; ++w) sums.of[c] += room[w][quad].of[c];
  }
  if (!inside) return;

  const float decay = p.log_decay ? expf(p.log_decay[p.constant_decay ? head : place]) : 1;
  const float beta = p.beta ? p.beta[place] : 1, skip = p.skip ? p.skip[head] : 0;
  const T* v = static_cast<const T*>(p.v) + batch * p.v_batch + head * p.v_head + column;
  float u[4];
#pragma unroll
  for (int c = 0; c < 4; ++c) {
    const float value = to_float(v[c]);
    u[c] = beta * (p.delta ? fmaf(-decay, sums.of[c], value) : value);
    if (row == 0) {
      const float read = p.scale * fmaf(sums.of[8], u[c], decay * sums.of[4 + c]);
      static_cast<T*>(p.out)[place * values + column + c] = rounded<T>(fmaf(skip, value, read));
    }
  }
#pragma unroll
  for (int n = 0; n < HELD; ++n) {
    const int r = row + n * kRows;
    if (r >= keys) continue;
    *reinterpret_cast<float4*>(p.next_state + corner + int64_t{r} * values) = {
        fmaf(decay, held[n].x, key[n] * u[0]), fmaf(decay, held[n].y, key[n] * u[1]),
        fmaf(decay, held[n].z, key[n] * u[2]), fmaf(decay, held[n].w, key[n] * u[3])};
  }
}

// Each thread processes one channel. The sums are bitwise equal to the results of short_convolution.
template <typename T>
__global__ void __launch_bounds__(kThreads) convolve(const __grid_constant__ ConvolutionStep p) {
  decoding::let_next_start();
  decoding::wait_for_launcher();
  const int64_t channel = int64_t{blockIdx.x} * kThreads + threadIdx.x, batch = p.first + blockIdx.y;
  if (channel >= p.channels) return;
  const T* past = static_cast<const T*>(p.past) + batch * (p.taps - 1) * p.channels + channel;
  T* next = static_cast<T*>(p.next_past) + batch * (p.taps - 1) * p.channels + channel;
  float sum = p.bias ? p.bias[channel] : 0;
  for (int tap = 0; tap < p.taps; ++tap) {
    const T x = tap + 1 < p.taps ? past[tap * p.channels] : static_cast<const T*>(p.x)[batch * p.x_batch + channel];
    sum = fmaf(p.weight[channel * p.taps + tap], to_float(x), sum);
    if (tap > 0) next[(tap - 1) * p.channels] = x;
  }
  static_cast<T*>(p.y)[batch * p.channels + channel] = rounded<T>(sum * sigmoid<T>(sum));
}

template <typename T, int HELD>
void start_recur(const RecurrenceStep& all, cudaStream_t stream) {
  in_parts(all.batch, [&](int64_t first, int64_t sequences) {
    RecurrenceStep p = all;
    p.first = first;
    const dim3 grid(static_cast<unsigned>((p.value_dim + 4 * kQuads - 1) / (4 * kQuads)),
                    static_cast<unsigned>(p.heads), static_cast<unsigned>(sequences));
    decoding::start<recur<T, HELD>>(p, grid, kThreads, 0, /*after_own=*/true, stream);
  });
}

}  // namespace

void recurrence_step(const RecurrenceStep& p, cudaStream_t stream) {
  with_type(p.type, [&](auto zero) {
    using T = decltype(zero);
    if (p.key_dim <= kRows) return start_recur<T, 1>(p, stream);
    if (p.key_dim <= 2 * kRows) return start_recur<T, 2>(p, stream);
    if (p.key_dim <= 4 * kRows) return start_recur<T, 4>(p, stream);
    start_recur<T, kMaxStepKeys / kRows>(p, stream);
  });
}

void convolution_step(const ConvolutionStep& all, cudaStream_t stream) {
  in_parts(all.batch, [&](int64_t first, int64_t sequences) {
    ConvolutionStep p = all;
    p.first = first;
    const dim3 grid(static_cast<unsigned>((p.channels + kThreads - 1) / kThreads), static_cast<unsigned>(sequences));
    with_type(p.type, [&](auto zero) {
      decoding::start<convolve<decltype(zero)>>(p, grid, kThreads, 0, /*after_own=*/true, stream);
    });
  });
}

}  // namespace lazy::ops::cuda
