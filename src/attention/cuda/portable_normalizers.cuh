// Converts scores to weights in the portable kernels. Implements the formulas of weights.cuh for scores in tensor-core
// accumulators, with the normalizer family as a template parameter.
#pragma once
#include "attention/cuda/portable.cuh"

namespace lazy::kernels::cuda::portable {

// Returns the factor by which scores are multiplied before the normalizer is applied: log2(e) for the families that use
// exponentials, because the kernels compute exp2; 1/2 for entmax-1.5 and 1 for sparsemax, as in the definitions of
// their thresholds.
template <NormalizerFamily F>
__device__ float score_unit(const Params& p) {
  if constexpr (F == NormalizerFamily::threshold) return p.normalizer == Normalizer::entmax15 ? 0.5f : 1.0f;
  return kLog2e;
}

// Returns the row's log-sum-exp or threshold, which is subtracted from the scores, in the unit of score_unit(). The
// forward has stored it in p.lse.
template <NormalizerFamily F>
__device__ float row_anchor(const Params& p, int64_t index) {
  if constexpr (F == NormalizerFamily::sigmoid) return 0;  // sigmoid has no statistic, and p.lse may be null
  return p.lse[index] * (F == NormalizerFamily::threshold ? 1.0f : kLog2e);
}

// Whether the normalizer uses an offset per row.
template <NormalizerFamily F>
__device__ bool has_offset(const Params& p) {
  return F == NormalizerFamily::sigmoid || F == NormalizerFamily::rectified || takes_tau(p.normalizer);
}

// Returns the offset of a row. For elastic and elastic_sink, the offset is added to the probability. For sigmoid, it is
// added to the score. For softpick, it is the score 0 minus the anchor (the value that is subtracted from all scores of
// the row). tau: the parameter of the head.
template <NormalizerFamily F>
__device__ float row_offset(const Params& p, const Keys& keys, float tau, float anchor) {
  if constexpr (F == NormalizerFamily::threshold) return 0;
  if constexpr (F == NormalizerFamily::rectified) return -anchor;
  if constexpr (F == NormalizerFamily::sigmoid) {
    const auto count = static_cast<float>(max(keys.end - keys.begin, 1));
    return (isnan(p.sigmoid_bias) ? -logf(count) : p.sigmoid_bias) * kLog2e;
  }
  return takes_tau(p.normalizer) ? elastic_offset(p, keys, tau) : 0;
}

// Returns the fraction of a row's denominator that comes from the sink or from softpick's epsilon, and not from a key.
template <NormalizerFamily F>
__device__ float outside_share(const Params& p, int head, float anchor) {
  if constexpr (F == NormalizerFamily::rectified) return static_cast<float>(kSoftpickEpsilon) * exp2_fast(-anchor);
  return takes_sink(p.normalizer) ? exp2_fast(scaled_sink(p, head) - anchor) : 0;
}

// Whether, in a row that sees only one key, the weight of this key (before the offset is added) is one for every score.
// The gradient ds of the score is then exactly 0.
template <NormalizerFamily F>
__device__ bool single_key_is_one(const Params& p) {
  return !takes_sink(p.normalizer) && F != NormalizerFamily::sigmoid && F != NormalizerFamily::rectified;
}

// Returns the factor by which the backward multiplies f (see weights.cuh): `inverse` = 1 / (sum of f) for the
// exponential family and for softpick, so that the rounding error of lse is not amplified, otherwise 1. It returns 0
// for a row whose only key has weight one for every score. single: the row has only one key. closed: outside_share is
// too small to change the sum of f.
template <NormalizerFamily F>
__device__ float row_norm(const Params& p, bool single, bool closed, float inverse) {
  // For softpick, a negative norm marks a row with a single key, whose ds is exactly 0 (see pair_weight).
  if constexpr (F == NormalizerFamily::rectified) return single && closed ? -inverse : inverse;
  if (single && single_key_is_one<F>(p)) return 0;
  return F == NormalizerFamily::exponential ? inverse : 1;
}

__device__ inline float sigmoid2(float x) { return __fdividef(1.0f, 1.0f + exp2_fast(-x)); }  // x is in units of log2

struct PairWeight {
  float weight, factor;  // factor: f in weights.cuh; a negative `weight` means that the weight is zero
  bool alive;
};

// Computes exp2(d) - unit for softpick. d is the score in units of log2 minus the anchor (the value subtracted from all
// scores of the row), and unit = exp2(-anchor). For scores near zero, expm1 avoids the cancellation in the direct
// difference, whose error would depend on the anchor.
__device__ inline float rectified_excess(float score, float d, float unit) {
  return fabsf(score) < 1 ? unit * expm1f(score * kLn2) : exp2_fast(d) - unit;
}

// Returns the weight and the factor f of a query-key pair. d: score minus anchor (the value that is subtracted from all
// scores of the row), -inf if masked. A NaN is treated as a nonzero weight and gives a NaN weight. lowest: for the
// exponential family, the weight is nonzero if probability + offset is above this value. squared: the normalizer is
// entmax15. score: only used for softpick, the score before the anchor was subtracted.
template <NormalizerFamily F>
__device__ PairWeight pair_weight(float score, float d, float norm, float offset, float lowest, bool squared) {
  if constexpr (F == NormalizerFamily::threshold) {
    const float z = positive(d);
    return {squared ? z * z : z, (squared ? z : z > 0 ? 1.0f : z) * norm, !(d <= 0)};
  } else if constexpr (F == NormalizerFamily::sigmoid) {
    const float w = sigmoid2(d + offset);
    return {w, w * (1 - w), true};
  } else if constexpr (F == NormalizerFamily::rectified) {
    // A negative norm marks a row whose only key has weight one or zero; ds is then exactly 0.
    const float f = exp2_fast(d) * norm;
    const float weight = score == -INFINITY ? 0 : rectified_excess(score, d, exp2_fast(offset)) * fabsf(norm);
    return {weight, norm < 0 || score == 0 ? 0 * f : score < 0 ? -f : f, !(score <= 0)};
  } else {
    const float f = exp2_fast(d), p = f * norm;
    return {p + offset, p, !(f + offset <= lowest)};
  }
}

// The terms that a query-key pair adds to the sums of weights.cuh: norm_term() to the sum of f, and, if the weight is
// nonzero, center_term() times g to the sum of f g. For softpick, both functions use the weight in place of f.
template <NormalizerFamily F>
__device__ float norm_term(const PairWeight& x) {
  return F == NormalizerFamily::rectified ? fabsf(x.weight) : x.factor;
}
template <NormalizerFamily F>
__device__ float center_term(const PairWeight& x) {
  return F == NormalizerFamily::rectified ? x.weight : x.factor;
}

// Returns the weight of the forward pass, for all families except the exponential family. It is zero if x.alive is
// false.
template <NormalizerFamily F>
__device__ float final_weight(const PairWeight& x) {
  return F == NormalizerFamily::rectified ? positive(x.weight) : x.weight;
}

}  // namespace lazy::kernels::cuda::portable
