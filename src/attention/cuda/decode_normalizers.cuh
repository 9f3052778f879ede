// The normalizers of decode. A row's state is computed either from the parts (maximum and sum of exponentials per part)
// that the scores kernel writes, or from all scores of the row. The weight of a score follows from this state.
#pragma once
#include "attention/cuda/decode_rows.cuh"

namespace lazy::kernels::cuda::decoding {

constexpr int kStateWarps = 32, kStateThreads = 32 * kStateWarps;  // warps and threads per block of the states kernel

// Whether a row's state must be computed from all scores of the row. For the other normalizers, the parts that the
// scores kernel writes are sufficient.
__host__ __device__ constexpr bool needs_all_scores(Normalizer n) {
  return !in_family<NormalizerFamily::exponential>(n) && !in_family<NormalizerFamily::sigmoid>(n);
}

struct DecodeWeight {
  float weight;
  bool alive;
};

// Returns the weight of a score for the exponential family. A NaN is treated as a nonzero weight, so that it propagates
// to the output.
__device__ inline DecodeWeight softmax_weight(const RowState& r, float score) {
  const float weight = fmaf(expf(score - r.largest), r.inverse, r.offset);
  const bool alive = !(weight <= r.dead);
  return {alive ? weight : 0, alive};
}

__device__ inline DecodeWeight decode_weight(Normalizer normalizer, const RowState& r, float score) {
  switch (normalizer) {
    case Normalizer::sparsemax: {
      const float z = score - r.largest - r.inverse;
      return {z <= 0 ? 0 : z, !(z <= 0)};
    }
    case Normalizer::entmax15: {
      const float z = (score - r.largest) / 2 - r.inverse;
      return {z <= 0 ? 0 : z * z, !(z <= 0)};
    }
    case Normalizer::sigmoid:
      return {__fdividef(1, 1 + expf(-(score + r.offset))), true};
    case Normalizer::softpick: {
      const float weight = softpick_excess(score, r.largest) * r.inverse;
      return {score <= 0 || weight < 0 ? 0 : weight, !(score <= 0)};
    }
    case Normalizer::softmax:
    case Normalizer::elastic:
    case Normalizer::softmax_sink:
    case Normalizer::elastic_sink:
      return softmax_weight(r, score);
  }
  __builtin_unreachable();  // the host code rejects other values
}

// Initializes the fields of the state that do not depend on the scores.
__device__ inline RowState make_state(const Params& p, const RowTile& t, int r) {
  const Keys keys = visible(p, max(t.sequence.length, 0), t.query(p, r));
  RowState state{0, 1, 0, -INFINITY, 1, keys.begin, keys.end, 0};
  int64_t count = keys.end - keys.begin;
  if (p.visible_counts) count = p.visible_counts[t.batch] - (p.q_length - 1 - t.query(p, r));
  if (takes_tau(p.normalizer)) {
    const float tau = p.tau[t.head(p, r)];
    state.offset = p.per_visible ? tau / static_cast<float>(count) : tau;
    if (state.offset < 0) state.dead = 0;
  }
  if (p.normalizer == Normalizer::sigmoid) {
    state.offset = isnan(p.sigmoid_bias) ? -logf(static_cast<float>(count)) : p.sigmoid_bias;
  }
  if (p.dtype == DType::f16) {
    // No weight exceeds `most`. The kernels represent a scaled weight as the sum of two fp16 numbers. The scale is a
    // power of two that brings the weights below 2^15, so that these numbers are in the range of fp16.
    const float most = takes_tau(p.normalizer) ? 1 + fmaxf(state.offset, 0) : 1;
    state.weight_scale = isfinite(most) ? ldexpf(1, 14 - ilogbf(most)) : 1;
  }
  return state;
}

// Merges two pairs (maximum score, sum of exponentials relative to it). A NaN in either pair propagates to the sum.
// __fmul_rn prevents contraction to FMA, so that the result is symmetric in a and b and bitwise equal in all kernels.
__device__ inline float2 merge(float2 a, float2 b) {
  const float largest = fmaxf(a.x, b.x), base = largest == -INFINITY ? 0 : largest;
  return {largest, __fadd_rn(__fmul_rn(a.y, expf(a.x - base)), __fmul_rn(b.y, expf(b.x - base)))};
}
__device__ inline float2 warp_merge(float2 x) {
  for (int step = 16; step > 0; step /= 2) {
    x = merge(x, {__shfl_xor_sync(~0u, x.x, step), __shfl_xor_sync(~0u, x.y, step)});
  }
  return x;
}

// Merges the parts with the indices first, first + step, first + 2 step, ... that are below `parts`. load(n, x) must
// load part n to x[0], part n + step to x[1], and so on.
constexpr int kPartsAtOnce = 4;
template <typename Load>
__device__ float2 merge_loaded_parts(const Load& load, int parts, int first, int step) {
  float2 all{-INFINITY, 0};
  for (int n = first; n < parts; n += kPartsAtOnce * step) {
    float2 x[kPartsAtOnce];
    load(n, x);
    float largest = all.x;
#pragma unroll
    for (int i = 0; i < kPartsAtOnce; ++i) largest = fmaxf(largest, x[i].x);
    const float base = largest == -INFINITY ? 0 : largest;
    float sum = __fmul_rn(all.y, expf(all.x - base));
#pragma unroll
    for (int i = 0; i < kPartsAtOnce; ++i) sum = fmaf(x[i].y, expf(x[i].x - base), sum);
    all = {largest, sum};
  }
  return all;
}
__device__ inline float2 merge_parts(const float2* part, int parts, int first, int step) {
  return merge_loaded_parts(
      [&](int n, float2(&x)[kPartsAtOnce]) {
#pragma unroll
        for (int i = 0; i < kPartsAtOnce; ++i) {
          x[i] = n + i * step < parts ? __ldcg(part + n + i * step) : float2{-INFINITY, 0};
        }
      },
      parts, first, step);
}

// Completes the state of row r. `all` is the result of merging all parts of the row; `lse` receives the row's
// log-sum-exp.
__device__ inline RowState finish_state(const Params& p, const RowTile& t, int r, RowState state, float2 all,
                                        float& lse) {
  lse = 0;
  if (takes_sink(p.normalizer)) all = merge(all, {p.sink[t.head(p, r)], 1});
  if (p.normalizer != Normalizer::sigmoid) {
    state.largest = all.x;
    state.inverse = 1 / all.y;
    lse = state.begin < state.end ? all.x + logf(all.y) : -INFINITY;
  }
  if (t.sequence.length < 0) lse = NAN;
  return state;
}
__device__ inline RowState finish_state(const Params& p, const RowTile& t, int r, float2 all, float& lse) {
  return finish_state(p, t, r, make_state(p, t, r), all, lse);
}

// Stores the state and the lse of row r. Called by one thread.
__device__ inline void keep_state(const Params& p, const RowTile& t, int r, const RowState& state, float lse) {
  p.states[t.row + r] = state;
  if (p.lse) p.lse[t.row + r] = lse;
}

// The following functions compute the threshold theta of sparsemax and entmax-1.5 for a row of stored scores s. All
// threads of a block take part.
//   sparsemax: w = max(x - theta, 0),   x = s - largest
//   entmax15:  w = max(x - theta, 0)^2, x = (s - largest) / 2
// theta is the root of (sum of the weights) = 1 and is in [-1, 0). The sum is convex and decreasing in theta, and at
// least one at theta = -1. Newton's method from -1 therefore increases theta towards the root and never passes it.
//
// Statistics of the scores above theta: their number, the sum of x - theta, and the sum of its squares.
struct Above {
  int count;
  double sum, squares;
};

// Computes the statistics for the visible scores s of a row. `unit` is the factor of s in the definition of x (1 for
// sparsemax, 1/2 for entmax-1.5). Every thread of the block must call this function, and all threads get the same
// result.
__device__ inline Above above(const float* s, int count, float largest, float unit, float theta,
                              Above (&room)[kStateWarps]) {
  Above mine{};
  constexpr int kAtOnce = 8;
  for (int n = threadIdx.x; n < count; n += kAtOnce * kStateThreads) {
    float score[kAtOnce];
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i) {
      const int at = n + i * kStateThreads;
      score[i] = at < count ? __ldcg(s + at) : -INFINITY;
    }
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i) {
      const float excess = (score[i] - largest) * unit - theta;
      if (excess > 0) {
        ++mine.count;
        mine.sum += excess;
        mine.squares += static_cast<double>(excess) * excess;
      }
    }
  }
  mine = {warp_sum(mine.count), warp_sum(mine.sum), warp_sum(mine.squares)};
  __syncthreads();  // wait until all threads have read the results of the previous call
  if (threadIdx.x % 32 == 0) room[threadIdx.x / 32] = mine;
  __syncthreads();
  Above all{};
  for (int w = 0; w < kStateWarps; ++w) {
    all.count += room[w].count;
    all.sum += room[w].sum;
    all.squares += room[w].squares;
  }
  return all;
}

__device__ inline float sparsemax_threshold(const float* s, int count, float largest, Above (&room)[kStateWarps]) {
  double theta = -1;
  // Each iteration computes the solution theta for the support (the set of scores above the threshold) of the previous
  // threshold. When the support no longer changes, the threshold is exact.
  for (int support = INT32_MAX;;) {
    const Above a = above(s, count, largest, 1, static_cast<float>(theta), room);
    theta += (a.sum - 1) / a.count;
    if (a.count >= support) return static_cast<float>(theta);
    support = a.count;
  }
}

__device__ inline float entmax15_threshold(const float* s, int count, float largest, Above (&room)[kStateWarps]) {
  double theta = -1;
  for (int support = 0;;) {
    const Above a = above(s, count, largest, 0.5f, static_cast<float>(theta), room);
    const double step = (a.squares - 1) / (2 * a.sum);
    // For a fixed support (the set of scores above theta), the sum of weights is a quadratic function of theta, and
    // `root` is the theta at which this function is one. `root` is the solution if the scores above it form the same
    // support. If the support is too large, `root` is above the solution.
    const double discriminant = a.sum * a.sum - a.count * (a.squares - 1);
    if (a.count == support && discriminant >= 0) {
      const float root = static_cast<float>(theta + (a.squares - 1) / (a.sum + sqrt(discriminant)));
      if (above(s, count, largest, 0.5f, root, room).count == a.count) return root;
    }
    if (!(step > 1e-7)) return static_cast<float>(theta + step);
    theta += step;
    support = a.count;
  }
}

// Returns the state of a row for sparsemax or entmax-1.5. all.x is the maximum score of the row; all.y is NaN if a
// score is NaN.
__device__ inline RowState threshold_state(const Params& p, const RowTile& t, int r, float2 all, float& lse,
                                           Above (&room)[kStateWarps]) {
  RowState state = make_state(p, t, r);
  const int count = state.end - state.begin;
  const bool entmax = p.normalizer == Normalizer::entmax15;
  const float* s = score_at(p, t, r, state.begin);
  lse = -INFINITY;
  if (count > 0 && (isnan(all.y) || isinf(all.x))) {
    lse = state.largest = state.inverse = NAN;
  } else if (count > 0) {
    state.largest = all.x;
    state.inverse = entmax ? entmax15_threshold(s, count, all.x, room) : sparsemax_threshold(s, count, all.x, room);
    lse = all.x * (entmax ? 0.5f : 1.0f) + state.inverse;
  }
  if (t.sequence.length < 0) lse = NAN;
  return state;
}

// Returns the state of a row for softpick. With m = max(largest score, 0), `largest` is m and `inverse` is 1 / (sum of
// |exp(s - m) - exp(-m)| + kSoftpickEpsilon).
__device__ inline RowState softpick_state(const Params& p, const RowTile& t, int r, float2 all, float& lse,
                                          Above (&room)[kStateWarps]) {
  RowState state = make_state(p, t, r);
  const int count = state.end - state.begin;
  const float* s = score_at(p, t, r, state.begin);
  const float largest = fmaxf(all.x, 0);
  Above mine{};
  for (int n = threadIdx.x; n < count; n += kStateThreads) {
    const float score = __ldcg(s + n);
    if (score != -INFINITY) mine.sum += fabsf(softpick_excess(score, largest));
  }
  mine.sum = warp_sum(mine.sum);
  if (threadIdx.x % 32 == 0) room[threadIdx.x / 32] = mine;
  __syncthreads();
  double sum = kSoftpickEpsilon;
  for (int w = 0; w < kStateWarps; ++w) sum += room[w].sum;
  state.largest = largest;
  state.inverse = static_cast<float>(1 / sum);
  lse = count > 0 ? largest + logf(static_cast<float>(sum)) : -INFINITY;
  if (t.sequence.length < 0) lse = NAN;
  return state;
}

// Returns the state of a row for a normalizer that needs all scores of the row. Called by a whole block. all.x is the
// maximum score of the row; all.y is NaN if a score is NaN.
__device__ inline RowState state_of_scores(const Params& p, const RowTile& t, int r, float2 all, float& lse,
                                           Above (&room)[kStateWarps]) {
  if (p.normalizer == Normalizer::softpick) return softpick_state(p, t, r, all, lse, room);
  return threshold_state(p, t, r, all, lse, room);
}

}  // namespace lazy::kernels::cuda::decoding
