// From scores to weights in the portable kernels, with the normalizer's family as a template parameter: weights.cuh for
// tensor-core accumulators.
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
  return p.lse[index] * (F == NormalizerFamily::threshold ? 1.0f : kLog2e);
}

// Whether a row has an offset at all.
template <NormalizerFamily F>
__device__ bool has_offset(const Params& p) {
  return F == NormalizerFamily::sigmoid || F == NormalizerFamily::rectified || p.normalizer == Normalizer::elastic;
}

// elastic: added to the probability; sigmoid: added to the score; softpick: the score of zero, relative to the anchor
// as scores are. tau: of the head.
template <NormalizerFamily F>
__device__ float row_offset(const Params& p, const Keys& keys, float tau, float anchor) {
  if constexpr (F == NormalizerFamily::threshold) return 0;
  if constexpr (F == NormalizerFamily::rectified) return -anchor;
  if constexpr (F == NormalizerFamily::sigmoid) {
    const auto count = static_cast<float>(max(keys.end - keys.begin, 1));
    return (isnan(p.sigmoid_bias) ? -logf(count) : p.sigmoid_bias) * kLog2e;
  }
  return p.normalizer == Normalizer::elastic ? elastic_offset(p, keys, tau) : 0;
}

// The share of a row's denominator that belongs to no key.
template <NormalizerFamily F>
__device__ float outside_share(const Params& p, int head, float anchor) {
  if constexpr (F == NormalizerFamily::rectified) return static_cast<float>(kSoftpickEpsilon) * exp2_fast(-anchor);
  return p.normalizer == Normalizer::softmax_sink ? exp2_fast(p.sink[head] * kLog2e - anchor) : 0;
}

// Whether a row's only key has weight one (before elastic's offset) whatever its score, so that ds = 0 exactly.
template <NormalizerFamily F>
__device__ bool single_key_is_one(const Params& p) {
  return p.normalizer != Normalizer::softmax_sink && F != NormalizerFamily::sigmoid && F != NormalizerFamily::rectified;
}

// What the backward multiplies f by: 1 / sum of f where the rounding of lse would be magnified otherwise. single: the
// row sees one key. closed: the share of outside_share vanishes beside the sum of f. Zero marks a row whose only key
// has weight one whatever its score.
template <NormalizerFamily F>
__device__ float row_norm(const Params& p, bool single, bool closed, float inverse) {
  if constexpr (F == NormalizerFamily::rectified) return single && closed ? -inverse : inverse;  // see pair_weight
  if (single && single_key_is_one<F>(p)) return 0;
  return F == NormalizerFamily::exponential ? inverse : 1;
}

__device__ inline float sigmoid2(float x) { return __fdividef(1.0f, 1.0f + exp2_fast(-x)); }  // of x in units of log2

struct PairWeight {
  float weight, factor;  // factor is f of weights.cuh; a weight below zero stands for zero
  bool alive;
};

// Softpick's exp2(d) - unit, where d is a score in units of log2 minus its row's anchor and unit = exp2(-anchor). As a
// difference, scores near zero would lose their digits, and by another amount for each anchor.
__device__ inline float rectified_excess(float score, float d, float unit) {
  return fabsf(score) < 1 ? unit * expm1f(score * kLn2) : exp2_fast(d) - unit;
}

// d: score minus anchor, -inf where masked. A NaN is alive, and its weight NaN. lowest: what the sum of probability and
// offset must be above (exponential). squared: entmax15. score: before the anchor was subtracted (softpick).
template <NormalizerFamily F>
__device__ PairWeight pair_weight(float score, float d, float norm, float offset, float lowest, bool squared) {
  if constexpr (F == NormalizerFamily::threshold) {
    const float z = positive(d);
    return {squared ? z * z : z, (squared ? z : z > 0 ? 1.0f : z) * norm, !(d <= 0)};
  } else if constexpr (F == NormalizerFamily::sigmoid) {
    const float w = sigmoid2(d + offset);
    return {w, w * (1 - w), true};
  } else if constexpr (F == NormalizerFamily::rectified) {
    // A negative norm marks a row whose only key has weight one or zero: ds = 0 exactly.
    const float f = exp2_fast(d) * norm;
    const float weight = score == -INFINITY ? 0 : rectified_excess(score, d, exp2_fast(offset)) * fabsf(norm);
    return {weight, norm < 0 || score == 0 ? 0 * f : score < 0 ? -f : f, !(score <= 0)};
  } else {
    const float f = exp2_fast(d), p = f * norm;
    return {p + offset, p, !(f + offset <= lowest)};
  }
}

// A pair's term of the sum of f, and of the sum of f g (for alive pairs); softpick's are of weights instead of f.
template <NormalizerFamily F>
__device__ float norm_term(const PairWeight& x) {
  return F == NormalizerFamily::rectified ? fabsf(x.weight) : x.factor;
}
template <NormalizerFamily F>
__device__ float center_term(const PairWeight& x) {
  return F == NormalizerFamily::rectified ? x.weight : x.factor;
}

// The weight of the forward pass, zero for dead pairs.
template <NormalizerFamily F>
__device__ float final_weight(const PairWeight& x) {
  return F == NormalizerFamily::rectified ? positive(x.weight) : x.weight;
}

}  // namespace lazy::kernels::cuda::portable
