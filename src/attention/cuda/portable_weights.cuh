// From a score to a weight in the portable kernels: weights.cuh with the normalizer's family as a template parameter.
#pragma once
#include "attention/cuda/portable.cuh"

namespace lazy::kernels::cuda::portable {

// Scores are computed times this: for powers of two, or as the threshold is defined (entmax-1.5 halves them).
template <NormalizerFamily F>
__device__ float score_unit(const Params& p) {
  if constexpr (F == NormalizerFamily::threshold) return p.normalizer == Normalizer::entmax15 ? 0.5f : 1.0f;
  return kLog2e;
}

// The row statistic that scores are relative to: lse or threshold, as the forward stores it, in the scores' unit.
template <NormalizerFamily F>
__device__ float row_anchor(const Params& p, int64_t index) {
  if constexpr (F == NormalizerFamily::sigmoid) return 0;  // has none, and p.lse may be null
  return p.lse[index] * (F == NormalizerFamily::exponential ? kLog2e : 1.0f);
}

// elastic: what is added to the probability; sigmoid: to the score; `tau` is the head's.
template <NormalizerFamily F>
__device__ float family_offset(const Params& p, const Keys& keys, float tau) {
  if constexpr (F == NormalizerFamily::threshold) return 0;
  if constexpr (F == NormalizerFamily::sigmoid) {
    const auto count = static_cast<float>(max(keys.end - keys.begin, 1));
    return (isnan(p.sigmoid_bias) ? -logf(count) : p.sigmoid_bias) * kLog2e;
  }
  return p.normalizer == Normalizer::elastic ? row_offset(p, keys, tau) : 0;
}

__device__ inline float sigmoid2(float x) { return __fdividef(1.0f, 1.0f + exp2_fast(-x)); }  // of x in units of log2

struct PairWeight {
  float weight, factor;  // factor is f of weights.cuh; a weight below zero stands for zero
  bool alive;
};

// d: score minus anchor, -inf where masked. A NaN is alive, and its weight NaN. lowest: what the sum of probability and
// offset must be above (exponential). squared: entmax15.
template <NormalizerFamily F>
__device__ PairWeight pair_weight(float d, float norm, float offset, float lowest, bool squared) {
  if constexpr (F == NormalizerFamily::threshold) {
    const float z = positive(d);
    return {squared ? z * z : z, (squared ? z : z > 0 ? 1.0f : z) * norm, !(d <= 0)};
  } else if constexpr (F == NormalizerFamily::sigmoid) {
    const float w = sigmoid2(d + offset);
    return {w, w * (1 - w), true};
  } else {
    const float f = exp2_fast(d), p = f * norm;
    return {p + offset, p, !(f + offset <= lowest)};
  }
}

}  // namespace lazy::kernels::cuda::portable
