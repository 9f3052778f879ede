// From a row of scores to weights, and back, for every normalizer: the choice by name, and the normalizers that are not
// softmax's or a threshold's.
#if defined(LAZY_ATTENTION_CPU_NORMALIZERS_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef LAZY_ATTENTION_CPU_NORMALIZERS_INL_H_
#undef LAZY_ATTENTION_CPU_NORMALIZERS_INL_H_
#else
#define LAZY_ATTENTION_CPU_NORMALIZERS_INL_H_
#endif

#include <cmath>
#include <cstdlib>

#include "attention/cpu/rows-inl.h"
#include "attention/cpu/softmax-inl.h"
#include "attention/cpu/threshold-inl.h"

HWY_BEFORE_NAMESPACE();
namespace lazy::kernels::cpu::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

HWY_INLINE float sigmoid_bias_of(const Problem& p, const Row& row) {
  if (!std::isnan(p.sigmoid_bias)) return static_cast<float>(p.sigmoid_bias);
  return -std::log(static_cast<float>(row.count));
}

// Weight and, if `complement` is not null, one minus it, either without cancellation: with e = exp(-|x|) they are
// 1 / (1 + e) and e / (1 + e). A hidden column's score of -inf gives 0.
HWY_INLINE VF sigmoid_weight(VF x, VF* complement) {
  const F f;
  const VF e = exp_nonpositive(f, hn::Neg(hn::Abs(x))), one = hn::Set(f, 1.0f);
  const VF inverse = hn::Div(one, hn::Add(one, e)), small = hn::Mul(e, inverse);
  const auto negative = hn::Lt(x, hn::Zero(f));
  if (complement) *complement = hn::IfThenElse(negative, inverse, small);
  return hn::IfThenElse(negative, small, inverse);
}

// s: scores in, weights out.
inline HWY_NOINLINE RowSummary sigmoid_row(const Problem& p, const Row& row, float* s) {
  const F f;
  const VF bias = hn::Set(f, sigmoid_bias_of(p, row));
  double total = 0;
  for (size_t j = row.vector_begin; j < row.vector_end;) {
    const size_t stop = std::min(row.vector_end, j + 512 * kLanes);  // blocks bound the rounding error of long sums
    VF sum = hn::Zero(f);
    for (; j < stop; j += kLanes) {
      const VF weight = sigmoid_weight(hn::Add(hn::LoadU(f, s + j), bias), nullptr);
      hn::StoreU(weight, f, s + j);
      sum = hn::Add(sum, weight);
    }
    total += sum_lanes(sum);
  }
  return {0, static_cast<float>(total), static_cast<int64_t>(row.end - row.begin)};
}

// s: scores in, weights out. g: gradient of the weights in, of the scores out:  ds = w (1 - w) g.
inline HWY_NOINLINE void sigmoid_row_backward(const Problem& p, const Row& row, float* s, float* g) {
  const F f;
  const VF bias = hn::Set(f, sigmoid_bias_of(p, row));
  for (size_t j = row.vector_begin; j < row.vector_end; j += kLanes) {
    VF complement;
    const VF weight = sigmoid_weight(hn::Add(hn::LoadU(f, s + j), bias), &complement);
    hn::StoreU(weight, f, s + j);
    hn::StoreU(hn::Mul(hn::Mul(weight, complement), hn::LoadU(f, g + j)), f, g + j);
  }
}

// Softpick: excess = exp(s - m) - exp(-m), m = max(largest score, 0); weight = max(excess, 0) / (sum |excess| + eps).
struct SoftpickStatistics {
  float m, sum;          // sum: of |excess|, eps included
  VF base, unit, total;  // m, exp(-m), sum
  HWY_INLINE VF exponential(VF s) const { return exp_nonpositive(F(), hn::Sub(s, base)); }
  // Zero for s <= 0; a NaN stays a NaN. Divided, not multiplied by 1 / sum: a row's only key has weight one exactly, so
  // that no rounding remains of its gradient p (g - sum w g).
  HWY_INLINE VF weight(VF s, VF exponential) const {
    const F f;
    const VF w = hn::Div(hn::Sub(exponential, unit), total), zero = hn::Zero(f);
    return hn::IfThenZeroElse(hn::Or(hn::Le(s, zero), hn::Lt(w, zero)), w);
  }
};

inline HWY_NOINLINE SoftpickStatistics softpick_statistics(const Row& row, const float* s) {
  const F f;
  const VF hidden = hn::Set(f, -std::numeric_limits<float>::infinity());
  VF largest = hn::Zero(f);
  for (size_t j = row.vector_begin; j < row.vector_end; j += kLanes) largest = hn::Max(largest, hn::LoadU(f, s + j));
  SoftpickStatistics r;
  r.m = max_lanes(largest);
  r.base = hn::Set(f, r.m);
  r.unit = exp_nonpositive(f, hn::Neg(r.base));
  double total = kSoftpickEpsilon;
  for (size_t j = row.vector_begin; j < row.vector_end;) {
    const size_t stop = std::min(row.vector_end, j + 512 * kLanes);  // blocks bound the rounding error of long sums
    VF sum = hn::Zero(f);
    for (; j < stop; j += kLanes) {
      const VF score = hn::LoadU(f, s + j), excess = hn::Abs(hn::Sub(r.exponential(score), r.unit));
      sum = hn::Add(sum, hn::IfThenZeroElse(hn::Eq(score, hidden), excess));
    }
    total += sum_lanes(sum);
  }
  r.sum = static_cast<float>(total);
  r.total = hn::Set(f, r.sum);
  return r;
}

// s: scores in, weights out.
inline HWY_NOINLINE RowSummary softpick_row(const Row& row, float* s) {
  const F f;
  const VF zero = hn::Zero(f);
  const SoftpickStatistics r = softpick_statistics(row, s);
  double total = 0;
  size_t alive = 0;
  for (size_t j = row.vector_begin; j < row.vector_end;) {
    const size_t stop = std::min(row.vector_end, j + 512 * kLanes);
    VF sum = zero;
    for (; j < stop; j += kLanes) {
      const VF score = hn::LoadU(f, s + j), weight = r.weight(score, r.exponential(score));
      alive += hn::CountTrue(f, hn::Not(hn::Le(score, zero)));
      hn::StoreU(weight, f, s + j);
      sum = hn::Add(sum, weight);
    }
    total += sum_lanes(sum);
  }
  return {r.m + std::log(r.sum), static_cast<float>(total), static_cast<int64_t>(alive)};
}

// s: scores in, weights out. g: gradient of the weights in, of the scores out. With p = exp(s - m) / sum and delta =
// sum w g:  ds = p (g - delta) for s > 0,  p delta for s < 0,  0 for s = 0.
inline HWY_NOINLINE void softpick_row_backward(const Row& row, float* s, float* g) {
  const F f;
  const VF zero = hn::Zero(f);
  const SoftpickStatistics r = softpick_statistics(row, s);
  VF delta = zero;
  for (size_t j = row.vector_begin; j < row.vector_end; j += kLanes) {
    const VF score = hn::LoadU(f, s + j);
    delta = hn::MulAdd(r.weight(score, r.exponential(score)), hn::LoadU(f, g + j), delta);
  }
  const VF all = hn::Set(f, sum_lanes(delta));
  for (size_t j = row.vector_begin; j < row.vector_end; j += kLanes) {
    const VF score = hn::LoadU(f, s + j), e = r.exponential(score);
    const VF alive = hn::Sub(hn::LoadU(f, g + j), all);
    const VF factor =
        hn::IfThenElse(hn::Lt(score, zero), all, hn::IfThenElse(hn::Eq(score, zero), hn::Mul(all, zero), alive));
    hn::StoreU(hn::Mul(hn::Div(e, r.total), factor), f, g + j);
    hn::StoreU(r.weight(score, e), f, s + j);
  }
}

// The forward pass of one row. s: scores in, weights out. scores: their statistics, if not null.
HWY_INLINE RowSummary row_weights(const Problem& p, const Row& row, const HeadParameters& head, float* s,
                                  ScoreStatistics* scores) {
  // The others do not compute the exponentials of their scores.
  if (scores && traits(p.normalizer).family != NormalizerFamily::exponential) {
    *scores = exponentiate<false, true>(row, -std::numeric_limits<float>::infinity(), s).scores;
  }
  switch (p.normalizer) {
    case Normalizer::softmax:
    case Normalizer::elastic:
    case Normalizer::softmax_sink:
      return softmax_row(p, row, head, s, scores);
    case Normalizer::sigmoid:
      return sigmoid_row(p, row, s);
    case Normalizer::sparsemax:
    case Normalizer::entmax15:
      return threshold_row(p, row, s);
    case Normalizer::softpick:
      return softpick_row(row, s);
  }
  std::abort();  // unmet_condition refuses other values
}

// The backward pass of one row. s: scores in, weights out. g: gradient of the weights in, of the scores out.
HWY_INLINE RowGradientSums row_gradients(const Problem& p, const Row& row, const HeadParameters& head, float* s,
                                         float* g) {
  switch (p.normalizer) {
    case Normalizer::softmax:
    case Normalizer::elastic:
    case Normalizer::softmax_sink:
      return softmax_row_backward(p, row, head, s, g);
    case Normalizer::sigmoid:
      sigmoid_row_backward(p, row, s, g);
      return {};
    case Normalizer::sparsemax:
    case Normalizer::entmax15:
      threshold_row_backward(p, row, s, g);
      return {};
    case Normalizer::softpick:
      softpick_row_backward(row, s, g);
      return {};
  }
  std::abort();
}

// s: scores in, weights out; zero outside the visible columns of [lo, hi). For a row that sees at least one key.
// scores: as in row_weights.
HWY_INLINE RowSummary normalize_row(const Problem& p, const Row& row, const HeadParameters& head, float* s, size_t lo,
                                    size_t hi, ScoreStatistics* scores) {
  const RowSummary summary = row_weights(p, row, head, s, scores);
  fill(s, lo, row.begin, 0);
  fill(s, row.end, hi, 0);
  return summary;
}

// Row r of a block: its products in s to weights, zero outside the visible columns of [0, columns), and its lse and
// statistics to memory. Arguments is Forward<float> or Decode<float>.
template <typename Arguments>
HWY_INLINE RowSummary finish_row(const Problem& p, const Arguments& a, const RowBlock& block, int64_t r, const Row& row,
                                 const HeadParameters& head, float* s, size_t columns) {
  RowSummary summary;
  ScoreStatistics of_scores;
  if (row.begin < row.end) {
    finish_scores(p, row, head, s);
    summary = normalize_row(p, row, head, s, 0, columns, a.score_stats ? &of_scores : nullptr);
    if (block.keys_begin == 0 && row.begin == 0) summary.first = s[0];
  } else {
    summary.lse = -std::numeric_limits<float>::infinity();
    fill(s, 0, columns, 0);
  }
  const Sequence& sequence = block.sequence;
  const int64_t index = (sequence.batch * p.heads + block.head) * p.q_length + sequence.q_begin + block.first + r;
  const int64_t part = p.batch * p.heads * p.q_length;
  if (a.lse) a.lse[index] = summary.lse;
  if (a.stats) {
    a.stats[index] = summary.first;
    a.stats[part + index] = 1 - summary.sum;
    a.stats[2 * part + index] = static_cast<float>(summary.alive);
  }
  if (a.score_stats) {
    a.score_stats[index] = of_scores.largest;
    a.score_stats[part + index] = of_scores.entropy;
  }
  return summary;
}

// s: scores in, weights out. g: gradient of the weights in, of the scores out. Outside the visible columns of [lo, hi)
// both become zero.
HWY_INLINE RowGradientSums backward_row(const Problem& p, const Row& row, const HeadParameters& head, float* s,
                                        float* g, size_t lo, size_t hi) {
  fill(g, row.vector_begin, row.begin, 0);
  fill(g, row.end, row.vector_end, 0);
  const RowGradientSums sums = row_gradients(p, row, head, s, g);
  fill(s, lo, row.begin, 0);
  fill(s, row.end, hi, 0);
  fill(g, lo, row.begin, 0);
  fill(g, row.end, hi, 0);
  return sums;
}

}  // namespace lazy::kernels::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif
