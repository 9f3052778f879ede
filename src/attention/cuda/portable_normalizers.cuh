// From scores to weights in the portable kernels, with the normalizer's family as a template parameter: weights.cuh for
// tensor-core accumulators.
#pragma once
#include "attention/cuda/portable_forward_rows.cuh"

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

// The threshold t of sparsemax and entmax-1.5 in the portable forward:  sum_j max(x_j - t, 0)^a = 1, a = 1 or 2, x
// relative to the row's largest score. Newton's method, a sweep over the keys a step: the left side is convex and
// falling, so from t = -1 the steps rise to the root and never pass it, but for rounding. Scores are computed again in
// every sweep, so memory stays linear.
// Statistics of a thread's rows in the pointwise forward: weights are functions of (score - largest - value - low) and
// of norm. lse: as the forward stores it.
template <int MI>
struct RowStatistics {
  float largest[MI][2], value[MI][2], low[MI][2];  // low: the part of `value` below its last digit
  float norm[MI][2], lse[MI][2];
};

template <typename T, int D, int MI = ForwardShape<D>::MI>
__device__ void find_threshold(RowSweep<T, D, ForwardShape<D>>& b, bool squared, RowStatistics<MI>& out) {
  constexpr int NT = ForwardShape<D>::N / 16, kMaxSteps = 64;
#pragma unroll
  for (int m = 0; m < MI; ++m) {
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      out.largest[m][h] = -INFINITY;
      out.value[m][h] = -1;
      out.low[m][h] = 0;
    }
  }
  b.sweep(false, [&](int key, int stage) {
    float s[MI][2 * NT][4];
    const float c = b.scores(s, key, stage);
#pragma unroll
    for (int m = 0; m < MI; ++m) {
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        out.largest[m][h] = fmaxf(out.largest[m][h], largest_of<2 * NT>(s[m], h) * c);
      }
    }
  });
#pragma unroll
  for (int m = 0; m < MI; ++m) {
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const float most = quad_max(out.largest[m][h]);
      out.largest[m][h] = most == -INFINITY ? 0 : most;  // sees nothing
    }
  }
  bool open = true;  // some row of the warp still moves
  for (int step = 0; step < kMaxSteps; ++step) {
    float slope[MI][2] = {}, sum[MI][2] = {};
    b.sweep(false, [&](int key, int stage) {
      if (!open) return;
      float s[MI][2 * NT][4];
      const float c = b.scores(s, key, stage);
#pragma unroll
      for (int m = 0; m < MI; ++m) {
#pragma unroll
        for (int n = 0; n < 2 * NT; ++n) {
#pragma unroll
          for (int e = 0; e < 4; ++e) {
            const float z = fmaxf(fmaf(s[m][n][e], c, -out.largest[m][e / 2]) - out.value[m][e / 2], 0);
            const float x = squared ? z : z > 0 ? 1.0f : 0.0f;
            slope[m][e / 2] += x;
            sum[m][e / 2] += x * z;
          }
        }
      }
    });
    bool moved = false;
#pragma unroll
    for (int m = 0; m < MI; ++m) {
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        const float falls = quad_sum(slope[m][h]) * (squared ? 2 : 1), all = quad_sum(sum[m][h]);
        if (!open || falls == 0) continue;
        // As a step from where we are: the sum is near one, not near the scores.
        const float by = (all - 1) / falls, next = out.value[m][h] + by;
        out.low[m][h] = next > out.value[m][h] ? 0 : by;
        moved |= next > out.value[m][h];
        out.value[m][h] = fmaxf(next, out.value[m][h]);
      }
    }
    open = __any_sync(~0u, moved);
    if (!__syncthreads_or(open)) break;
  }
}

// The sum of |exp(s) - 1| in softpick, relative to the row's largest score, or zero: one sweep over the keys.
template <typename T, int D, int MI = ForwardShape<D>::MI>
__device__ void find_rectified_sum(RowSweep<T, D, ForwardShape<D>>& b, RowStatistics<MI>& out) {
  constexpr int NT = ForwardShape<D>::N / 16;
  float sum[MI][2] = {};
#pragma unroll
  for (int m = 0; m < MI; ++m) out.largest[m][0] = out.largest[m][1] = 0;
  b.sweep(false, [&](int key, int stage) {
    float s[MI][2 * NT][4];
    const float c = b.scores(s, key, stage);
#pragma unroll
    for (int m = 0; m < MI; ++m) {
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        const float base = fmaxf(largest_of<2 * NT>(s[m], h) * c, out.largest[m][h]), unit = exp2_fast(-base);
        float part = 0;
#pragma unroll
        for (int n = 0; n < 2 * NT; ++n) {
#pragma unroll
          for (int e = 2 * h; e < 2 * h + 2; ++e) {
            const float excess = rectified_excess(s[m][n][e] * c, fmaf(s[m][n][e], c, -base), unit);
            part += s[m][n][e] == -INFINITY ? 0 : fabsf(excess);
          }
        }
        sum[m][h] = sum[m][h] * exp2_fast(out.largest[m][h] - base) + part;
        out.largest[m][h] = base;
      }
    }
  });
#pragma unroll
  for (int m = 0; m < MI; ++m) {
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const float base = quad_max(out.largest[m][h]);
      const float all =
          quad_sum(sum[m][h] * exp2_fast(out.largest[m][h] - base)) + static_cast<float>(kSoftpickEpsilon);
      out.largest[m][h] = base;
      out.norm[m][h] = 1 / all;
      out.lse[m][h] = (base + log2f(all)) * kLn2;
    }
  }
}

// The statistics of family F. `squared`: entmax15.
template <NormalizerFamily F, typename T, int D, int MI = ForwardShape<D>::MI>
__device__ void find_statistics(RowSweep<T, D, ForwardShape<D>>& b, bool squared, RowStatistics<MI>& out) {
  if constexpr (F == NormalizerFamily::rectified) {
    find_rectified_sum(b, out);
  } else {
    if constexpr (F == NormalizerFamily::threshold) find_threshold(b, squared, out);
#pragma unroll
    for (int m = 0; m < MI; ++m) {
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        out.norm[m][h] = 1;
        out.lse[m][h] = out.largest[m][h] + (out.value[m][h] + out.low[m][h]);
      }
    }
  }
}

}  // namespace lazy::kernels::cuda::portable
