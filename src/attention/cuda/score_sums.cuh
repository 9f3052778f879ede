// Running statistics of a row's scores, for Forward::score_stats (attention.h).
#pragma once
#include <cuda_runtime.h>

#include <cmath>

namespace lazy::kernels::cuda {

// Maximum of the scores and entropy of their softmax, in nats.
struct ScoreStatistics {
  float largest, entropy;
};

// Running sums for the entropy, relative to the largest score so far. With x = score - largest and e = exp(x), `sum` is
// the sum of e and `weighted` is the sum of e x:
//   entropy = ln(sum of e) - (sum of e x) / (sum of e)
// The scores may have a unit other than nats: Exponential::of(x) is the exponential function for this unit (exp or
// exp2), and Exponential::unit is the size of the unit in nats (1 or ln 2). of(x) is zero for x <= kLowest.
template <typename Exponential>
struct ScoreSums {
  static constexpr float kLowest = -150;  // lower limit of x in e x, because with x = -inf and e = 0 the product is NaN
  float largest = -INFINITY, sum = 0, weighted = 0;

  // added() returns `weighted` plus the term of one score. shrunk() converts `weighted` to a larger maximum: shift is
  // the old maximum minus the new maximum, shrink is Exponential::of(shift), and `sum` is the sum of e relative to the
  // old maximum. Kernels that compute e and the sum of e for the weights call these two functions directly.
  __device__ static float added(float weighted, float e, float x) { return fmaf(e, fmaxf(x, kLowest), weighted); }
  __device__ static float shrunk(float weighted, float sum, float shift, float shrink) {
    return shrink * fmaf(fmaxf(shift, kLowest), sum, weighted);
  }

  // Converts the sums to the new maximum `most`, which must not be below `largest`. `most` is -inf if there has been no
  // score yet.
  __device__ void raise(float most) {
    const float base = most > -INFINITY ? most : 0, shift = largest - base, shrink = Exponential::of(shift);
    weighted = shrunk(weighted, sum, shift, shrink);
    sum *= shrink;
    largest = most;
  }
  // Adds the scores c * score(n) for n < N. Masked scores are -inf. Requires c > 0.
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
  // Adds the sums of the lane with the index (own index xor distance), which has processed other keys of the same row.
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
  // Returns the statistics of a row that sees `keys` keys. If a score was NaN or +inf, the sums and both statistics are
  // NaN.
  __device__ ScoreStatistics finish(int keys) const {
    if (keys <= 0) return {-INFINITY, 0};
    const float entropy = logf(sum) - Exponential::unit * weighted / sum;
    if (isnan(entropy)) return {NAN, NAN};
    // For one key the entropy is exactly 0, without the rounding error of the difference.
    return {largest * Exponential::unit, keys == 1 ? 0 : entropy};
  }
};

struct NaturalExponential {
  static constexpr float unit = 1;
  __device__ static float of(float x) { return expf(x); }
};

}  // namespace lazy::kernels::cuda
