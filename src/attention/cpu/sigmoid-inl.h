// Sigmoid attention: every weight for itself, 1 / (1 + exp(-(s + bias))).
#if defined(LAZY_ATTENTION_CPU_SIGMOID_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef LAZY_ATTENTION_CPU_SIGMOID_INL_H_
#undef LAZY_ATTENTION_CPU_SIGMOID_INL_H_
#else
#define LAZY_ATTENTION_CPU_SIGMOID_INL_H_
#endif

#include <cmath>

#include "attention/cpu/exp-inl.h"
#include "attention/cpu/rows-inl.h"

HWY_BEFORE_NAMESPACE();
namespace lazy::kernels::cpu::HWY_NAMESPACE {

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

}  // namespace lazy::kernels::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif
