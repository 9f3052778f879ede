// From a score to a weight, and from a weight's gradient to a score's, for every normalizer; one row at a time.
//
// All normalizers share one form of the backward:   ds_j = f_j (g_j - center),   g_j = [alive_j] dw_j,
//   softmax, elastic, sink   f = p               center = sum f g / (sum f + the sink's share)
//   sparsemax                f = [alive]         center = sum f g / sum f
//   entmax15                 f = sqrt(weight)    center = sum f g / sum f
//   sigmoid                  f = w (1 - w)       center = 0
//   softpick                 f = sign(s) p       center = sum weight g / (sum |p - exp(-lse)| + the share of eps)
// p is exp(s - lse) / norm with norm = sum f, one but for lse's own rounding: where one key holds nearly all of the
// mass, g - center would magnify it.
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
    case DType::f64:  // refused by the host
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
    case DType::f64:  // refused by the host
      static_cast<float*>(data)[at] = x;
  }
}

// What depends on the row alone.
struct Row {
  Keys keys;
  int position;
  float offset;        // elastic: tau / c or tau; sigmoid: beta; others: Statistic::low
  float offset_scale;  // d offset / d tau
};

__device__ inline Row make_row(const Params& p, const Tile& t, int head, int row) {
  Row r;
  r.position = row + t.shift();
  r.keys = row < t.q_length ? visible(p, t, row) : Keys{0, 0};
  const float count = static_cast<float>(max(r.keys.end - r.keys.begin, 1));
  r.offset_scale = p.per_visible ? 1 / count : 1;
  r.offset = 0;
  if (p.normalizer == Normalizer::elastic) {
    r.offset = p.per_visible ? p.tau[head] / count : p.tau[head];
    // A row with one key has p = 1, whatever rounding makes of it: with offset -1 its weight is zero exactly.
    if (count == 1 && r.offset <= -1) r.offset = -2;
  }
  if (p.normalizer == Normalizer::sigmoid) r.offset = isnan(p.sigmoid_bias) ? -logf(count) : p.sigmoid_bias;
  return r;
}

// The score from the dot product; -inf where the row does not see the key. scale: 1 if `dot` is the capped score.
__device__ inline float finish_score(const Params& p, const Row& r, int head, int key, float dot, float scale) {
  if (key < r.keys.begin || key >= r.keys.end) return -INFINITY;
  const int distance = abs(r.position - key);
  float s = scale * dot;
  if (distance < p.bias_window) s += p.distance_bias[head * p.bias_window + distance];
  if (p.alibi_slopes) s -= p.alibi_slopes[head] * static_cast<float>(distance);
  return s;
}

// A row's largest score and the sum of its terms relative to it, before the first key.
struct RunningSum {
  float largest, sum;
};
__device__ inline RunningSum start_sum(const Params& p, int head) {
  if (p.normalizer == Normalizer::softmax_sink) return {p.sink[head], 1};
  if (p.normalizer == Normalizer::softpick) return {0, 0};
  return {-INFINITY, 0};
}

// Softpick's exp(score - base) - exp(-base). As a difference, scores near zero would lose their digits, and by another
// amount for each base.
__device__ inline float softpick_excess(float score, float base) {
  const float unit = expf(-base);
  return fabsf(score) < 1 ? unit * expm1f(score) : expf(score - base) - unit;
}

// The term of a score in the sum that weights are divided by. base: not below any score so far; finite.
__device__ inline float sum_term(const Params& p, float s, float base) {
  if (p.normalizer != Normalizer::softpick) return expf(s - base);
  return s == -INFINITY ? 0 : fabsf(softpick_excess(s, base));
}

// A row's statistics: weight(s) = weigh(s - largest, anchor, inverse), with no loss of digits for large scores. lse: as
// the forward stores it. low: of a threshold, the part below its last digit; softpick: the shifted score
// of zero.
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

// Which statistics a normalizer has: a sum, a threshold, or none.
__host__ __device__ constexpr bool has_threshold(Normalizer n) { return in_family<NormalizerFamily::threshold>(n); }
__host__ __device__ constexpr bool has_sum(Normalizer n) {
  return !has_threshold(n) && !in_family<NormalizerFamily::sigmoid>(n);
}

// The share of a row's denominator that belongs to no key.
__device__ inline float outside_share(const Params& p, int head, float lse) {
  if (p.normalizer == Normalizer::softpick) return static_cast<float>(kSoftpickEpsilon) * expf(-lse);
  return p.normalizer == Normalizer::softmax_sink ? expf(p.sink[head] - lse) : 0;
}

// Whether a row's only key has weight one (before elastic's offset) whatever its score, so that ds = 0 exactly. closed:
// the share of outside_share vanishes beside the sum of |f|.
__device__ inline bool single_key_is_one(Normalizer n, bool closed) {
  if (n == Normalizer::softpick) return closed;
  return n != Normalizer::softmax_sink && !in_family<NormalizerFamily::sigmoid>(n);
}

struct Weight {
  float weight, factor;  // factor is f above
  float part;            // the pair's term of the sum of |f|; times g (of alive pairs) its term of the sum of f g
  bool alive;
};

// center and norm as above; `anchor` is the row's lse or threshold. An invisible key (score -inf) has weight zero.
__device__ inline Weight weigh(const Params& p, const Row& r, float s, float anchor, float inverse_norm) {
  if (s == -INFINITY) return {0, 0, 0, false};
  switch (p.normalizer) {
    case Normalizer::sparsemax: {
      const float z = (s - anchor) - r.offset;
      const bool alive = !(z <= 0);  // a NaN is no dead key, and makes the row's gradient NaN
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
    case Normalizer::softpick: {  // s and r.offset are shifted alike; r.offset is the score of zero
      const float f = expf(s - anchor) * inverse_norm;
      const float part = softpick_excess(s - r.offset, anchor - r.offset) * inverse_norm;
      const bool alive = !(s <= r.offset);
      return {alive && !(part < 0) ? part : 0, s < r.offset ? -f : s == r.offset ? 0 * f : f, part, alive};
    }
    case Normalizer::softmax:
    case Normalizer::elastic:
    case Normalizer::softmax_sink: {
      const float f = expf(s - anchor) * inverse_norm;
      if (p.normalizer != Normalizer::elastic || r.offset >= 0) return {f + r.offset, f, f, true};
      const bool alive = !(f + r.offset <= 0);
      return {alive ? f + r.offset : 0, f, f, alive};
    }
  }
  __builtin_unreachable();  // the host refuses other values
}

}  // namespace lazy::kernels::cuda
