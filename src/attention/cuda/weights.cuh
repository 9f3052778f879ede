// Weight of a score, and gradient of a score from the gradient of its weight, for every normalizer. The functions
// process one row at a time.
//
// The backward of all normalizers has one form. For key j of a row, dw_j is the gradient of the weight, ds_j is the
// gradient of the score, alive_j is 1 if the weight is above zero and otherwise 0, and p = exp(s - lse):
//   ds_j = f_j (g_j - center),   g_j = [alive_j] dw_j,
//   exponential family       f = p               center = sum f g / (sum f + the sink's share)
//   sparsemax                f = [alive]         center = sum f g / sum f
//   entmax15                 f = sqrt(weight)    center = sum f g / sum f
//   sigmoid                  f = w (1 - w)       center = 0
//   softpick                 f = sign(s) p       center = sum weight g / (sum |p - exp(-lse)| + the share of eps)
// The shares of the sink and of eps (kSoftpickEpsilon) are their fractions of the denominator of the weights.
//
// The kernels divide p by norm = sum f (for softpick, by its denominator). The norm is one except for the rounding
// error of lse. Without the division, g - center would amplify this error in rows in which one key has nearly all of
// the weight.
#pragma once
#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include "attention/cuda/tiles.cuh"

namespace lazy::kernels::cuda {

__device__ inline float load(const void* data, int64_t at, DType type) {
  switch (type) {
    case DType::bf16:
      return __uint_as_float(static_cast<const uint16_t*>(data)[at] << 16);
    case DType::f16:
      return __half2float(static_cast<const __half*>(data)[at]);
    case DType::f32:
    case DType::f64:  // the host code rejects f64
      break;
  }
  return static_cast<const float*>(data)[at];
}

__device__ inline void store(void* data, int64_t at, DType type, float x) {
  switch (type) {
    case DType::bf16:
      static_cast<__nv_bfloat16*>(data)[at] = __float2bfloat16(x);
      break;
    case DType::f16:
      static_cast<__half*>(data)[at] = __float2half(x);
      break;
    case DType::f32:
    case DType::f64:  // the host code rejects f64
      static_cast<float*>(data)[at] = x;
  }
}

// Values that depend only on the row and not on the key.
struct Row {
  Keys keys;
  int position;
  float offset;        // elastic(_sink): tau or tau / (visible keys); sigmoid: bias; other normalizers: Statistic::low
  float offset_scale;  // d offset / d tau
};

__device__ inline Row make_row(const Params& p, const Tile& t, int head, int row) {
  Row r;
  r.position = row + t.shift();
  r.keys = row < t.q_length ? visible(p, t, row) : Keys{0, 0};
  const float count = static_cast<float>(max(r.keys.end - r.keys.begin, 1));
  r.offset_scale = p.per_visible ? 1 / count : 1;
  r.offset = 0;
  if (takes_tau(p.normalizer)) {
    r.offset = p.per_visible ? p.tau[head] / count : p.tau[head];
    // If a row sees one key, p is exactly 1 (or below 1 with a sink), but the computed p may differ by rounding. The
    // weight max(p + offset, 0) is then zero for offsets of -1 and below. The offset -2 makes the computed weight
    // exactly zero, too.
    if (count == 1 && r.offset <= -1) r.offset = -2;
  }
  if (p.normalizer == Normalizer::sigmoid) r.offset = isnan(p.sigmoid_bias) ? -logf(count) : p.sigmoid_bias;
  return r;
}

// Computes the score from the dot product. Returns -inf if the row does not see the key. If `dot` is already the capped
// score, `scale` must be 1.
__device__ inline float finish_score(const Params& p, const Row& r, int head, int key, float dot, float scale) {
  if (key < r.keys.begin || key >= r.keys.end) return -INFINITY;
  const int distance = abs(r.position - key);
  float s = scale * dot;
  if (distance < p.bias_window) s += p.distance_bias[head * p.bias_window + distance];
  if (p.alibi_slopes) s -= p.alibi_slopes[head] * static_cast<float>(distance);
  return s;
}

// Running maximum of a row's scores, and the sum of their sum_term(), which is the denominator of the weights relative
// to this maximum. start_sum() returns the state before the first key.
struct RunningSum {
  float largest, sum;
};
__device__ inline RunningSum start_sum(const Params& p, int head) {
  if (takes_sink(p.normalizer)) return {p.sink[head], 1};
  if (p.normalizer == Normalizer::softpick) return {0, 0};
  return {-INFINITY, 0};
}

// Computes exp(score - base) - exp(-base) for softpick. For scores near zero, expm1 avoids the cancellation in the
// direct difference, whose error would depend on the base.
__device__ inline float softpick_excess(float score, float base) {
  const float unit = expf(-base);
  return fabsf(score) < 1 ? unit * expm1f(score) : expf(score - base) - unit;
}

// Returns the term that score s adds to the denominator of the weights: exp(s - base), or for softpick
// |exp(s - base) - exp(-base)|. `base` must be finite and not below any score so far.
__device__ inline float sum_term(const Params& p, float s, float base) {
  if (p.normalizer != Normalizer::softpick) return expf(s - base);
  return s == -INFINITY ? 0 : fabsf(softpick_excess(s, base));
}

// Statistics of a row for the forward. compute_weight(s - largest, anchor, inverse) returns the weight of score s; it
// is precise also for large scores, because the largest score is subtracted first.
//   largest: maximum score of the row, which is subtracted from every score first
//   anchor: the threshold relative to `largest` (sparsemax, entmax15), otherwise 0
//   inverse: 1 / (sum of the terms of all scores relative to `largest`); with a threshold, 1
//   lse: the statistic that the forward stores in Params::lse
//   low: for sparsemax and entmax15, the low-order part of the threshold, which is anchor + low; for softpick,
//        -largest (the score 0 relative to `largest`); otherwise 0
struct Statistic {
  float largest, anchor, inverse, lse, low;
};
__device__ inline Statistic finish_sum(const Params& p, const Row& r, float largest, float sum) {
  const bool empty = r.keys.begin >= r.keys.end;
  if (p.normalizer == Normalizer::softpick) {
    sum += static_cast<float>(kSoftpickEpsilon);
    return {largest, 0, 1 / sum, empty ? -INFINITY : largest + logf(sum), -largest};
  }
  return {empty ? 0 : largest, 0, 1 / sum, empty ? -INFINITY : largest + logf(sum), 0};
}

// has_threshold: the row statistic of the normalizer is a threshold. has_sum: it is a sum of exponentials. Sigmoid has
// no row statistic.
__host__ __device__ constexpr bool has_threshold(Normalizer n) { return in_family<NormalizerFamily::threshold>(n); }
__host__ __device__ constexpr bool has_sum(Normalizer n) {
  return !has_threshold(n) && !in_family<NormalizerFamily::sigmoid>(n);
}

// Returns the fraction of a row's denominator that comes from the sink or from softpick's epsilon, and not from a key.
__device__ inline float outside_share(const Params& p, int head, float lse) {
  if (p.normalizer == Normalizer::softpick) return static_cast<float>(kSoftpickEpsilon) * expf(-lse);
  return takes_sink(p.normalizer) ? expf(p.sink[head] - lse) : 0;
}

// Whether, in a row that sees only one key, the weight of this key (before the offset is added) is one for every score.
// The gradient ds of the score is then exactly 0. `closed`: outside_share is too small to change the sum of |f|.
__device__ inline bool single_key_is_one(Normalizer n, bool closed) {
  if (n == Normalizer::softpick) return closed;
  return !takes_sink(n) && !in_family<NormalizerFamily::sigmoid>(n);
}

struct Weight {
  float weight, factor;  // factor: f, where the gradient of the score is ds = f (g - center)
  // The key's term in the sum of |f|. If the weight is nonzero, part * g is the key's term in the sum of f g, where g
  // is the gradient of the weight.
  float part;
  bool alive;
};

// Computes the weight and the factor f of score s. `anchor` is the row's lse or threshold, and inverse_norm is 1 / norm
// (see the top of this file). A masked key (score -inf) has weight zero.
__device__ inline Weight compute_weight(const Params& p, const Row& r, float s, float anchor, float inverse_norm) {
  if (s == -INFINITY) return {0, 0, 0, false};
  switch (p.normalizer) {
    case Normalizer::sparsemax: {
      const float z = (s - anchor) - r.offset;
      const bool alive = !(z <= 0);  // a NaN is treated as a nonzero weight, so that the row's gradient is NaN
      const float f = z > 0 ? 1.0f : alive ? z : 0;
      return {alive ? z : 0, f, f, alive};
    }
    case Normalizer::entmax15: {
      const float z = (s / 2 - anchor) - r.offset;
      const bool alive = !(z <= 0);
      return {alive ? z * z : 0, alive ? z : 0, alive ? z : 0, alive};
    }
    case Normalizer::sigmoid: {
      const float w = 1 / (1 + expf(-(s + r.offset)));
      return {w, w * (1 - w), w * (1 - w), true};
    }
    case Normalizer::softpick: {  // s is relative to the row's largest score; r.offset is the score 0 relative to it
      const float f = expf(s - anchor) * inverse_norm;
      const float part = softpick_excess(s - r.offset, anchor - r.offset) * inverse_norm;
      const bool alive = !(s <= r.offset);
      return {alive && !(part < 0) ? part : 0, s < r.offset ? -f : s == r.offset ? 0 * f : f, part, alive};
    }
    case Normalizer::softmax:
    case Normalizer::elastic:
    case Normalizer::softmax_sink:
    case Normalizer::elastic_sink: {
      const float f = expf(s - anchor) * inverse_norm;
      if (!takes_tau(p.normalizer) || r.offset >= 0) return {f + r.offset, f, f, true};
      const bool alive = !(f + r.offset <= 0);
      return {alive ? f + r.offset : 0, f, f, alive};
    }
  }
  __builtin_unreachable();  // the host code rejects other values
}

}  // namespace lazy::kernels::cuda
