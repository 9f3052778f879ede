// Running statistics of a row's scores, for Forward::score_stats (attention.h).
#pragma once
#include <cuda_runtime.h>

#include <cmath>

namespace lazy::kernels::cuda {

// In natural units.
struct ScoreStatistics {
  float largest, entropy;
};

// The largest score so far, and relative to it the sum of e = exp(x), x = score - largest, and of e x:
//   entropy = ln sum e - sum e x / sum e
// Exponential: its `of(x)` is the exponential of a score's unit, `unit` that unit in nats. Zero from kLowest down.
template <typename Exponential>
struct ScoreSums {
  static constexpr float kLowest = -150;  // instead of -inf, which times zero would be a NaN
  float largest = -INFINITY, sum = 0, weighted = 0;

  // The two steps of `weighted`, also for a kernel that has e, the sum and its base for another purpose: one more e,
  // and a base that rises by -shift, shrink = exp(shift), where `sum` is that of before.
  __device__ static float added(float weighted, float e, float x) { return fmaf(e, fmaxf(x, kLowest), weighted); }
  __device__ static float shrunk(float weighted, float sum, float shift, float shrink) {
    return shrink * fmaf(fmaxf(shift, kLowest), sum, weighted);
  }

  // Everything relative to `base` from now on, which is not below `largest`; -inf stands for "no score yet".
  __device__ void raise(float most) {
    const float base = most > -INFINITY ? most : 0, shift = largest - base, shrink = Exponential::of(shift);
    weighted = shrunk(weighted, sum, shift, shrink);
    sum *= shrink;
    largest = most;
  }
  // Adds score(n) c for n < N; hidden ones are -inf. c > 0.
  template <int N, typename Score>
  __device__ void add(float c, const Score& score) {
    float most = -INFINITY;
#pragma unroll
    for (int n = 0; n < N; ++n) most = fmaxf(most, score(n));
    most = fmaxf(most * c, largest);
    raise(most);
    const float base = most > -INFINITY ? most : 0;
    float e = 0, ex = 0;
#pragma unroll
    for (int n = 0; n < N; ++n) {
      const float x = fmaf(score(n), c, -base), one = Exponential::of(x);
      e += one;
      ex = added(ex, one, x);
    }
    sum += e;
    weighted += ex;
  }
  // Adds another lane's share of the row.
  __device__ void merge_lane(int distance) {
    ScoreSums other{__shfl_xor_sync(~0u, largest, distance), __shfl_xor_sync(~0u, sum, distance),
                    __shfl_xor_sync(~0u, weighted, distance)};
    merge(other);
  }
  __device__ void merge(ScoreSums other) {
    const float most = fmaxf(largest, other.largest);
    raise(most);
    other.raise(most);
    sum += other.sum;
    weighted += other.weighted;
  }
  // keys: how many the row sees. A NaN or +inf among the scores has made a NaN of the sum.
  __device__ ScoreStatistics finish(int keys) const {
    if (keys <= 0) return {-INFINITY, 0};
    const float entropy = logf(sum) - Exponential::unit * weighted / sum;
    if (isnan(entropy)) return {NAN, NAN};
    return {largest * Exponential::unit, keys == 1 ? 0 : entropy};  // of one key, whatever x was rounded to
  }
};

struct NaturalExponential {
  static constexpr float unit = 1;
  __device__ static float of(float x) { return expf(x); }
};

}  // namespace lazy::kernels::cuda
