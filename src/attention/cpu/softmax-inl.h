// Softmax, with a sink (gpt-oss) or without, and Elastic-Softmax: a row of scores to weights, and back.
#if defined(LAZY_ATTENTION_CPU_SOFTMAX_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef LAZY_ATTENTION_CPU_SOFTMAX_INL_H_
#undef LAZY_ATTENTION_CPU_SOFTMAX_INL_H_
#else
#define LAZY_ATTENTION_CPU_SOFTMAX_INL_H_
#endif

#include <cmath>
#include <limits>

#include "attention/cpu/rows-inl.h"
#include "attention/cpu/vector-inl.h"

HWY_BEFORE_NAMESPACE();
namespace lazy::kernels::cpu::HWY_NAMESPACE {

struct Exponentials {
  float largest, sum;  // of the scores; of their exponentials, the sink's included
  float sink;          // exp(sink - largest)
  ScoreStatistics scores;
};

// e = exp(x), x = s - largest. `sink` is one more score that takes part in the largest and the sum; -inf: none.
// kStore: s becomes e. kScores: with the statistics of the scores, hidden columns are -inf:
//   entropy = ln sum e - sum e x / sum e
template <bool kStore, bool kScores>
HWY_NOINLINE Exponentials exponentiate(const Row& row, float sink, float* s) {
  const F f;
  VF m0 = hn::Set(f, sink), m1 = m0;
  size_t j = row.vector_begin;
  for (; j + 2 * kLanes <= row.vector_end; j += 2 * kLanes) {
    m0 = hn::Max(m0, hn::LoadU(f, s + j));
    m1 = hn::Max(m1, hn::LoadU(f, s + j + kLanes));
  }
  if (j < row.vector_end) m0 = hn::Max(m0, hn::LoadU(f, s + j));
  Exponentials r;
  r.largest = max_lanes(hn::Max(m0, m1));
  r.sink = std::exp(sink - r.largest);
  constexpr float kNone = -std::numeric_limits<float>::infinity();
  // Relative to a sink above them the scores' exponentials have lost digits.
  const bool apart = kScores && sink > kNone && sink >= r.largest;
  if (apart) r.scores = exponentiate<false, true>(row, kNone, s).scores;
  const VF m = hn::Set(f, r.largest), lowest = hn::Set(f, -128.0f);  // e is zero there, e x too
  double total = r.sink, of_scores = 0, weighted = 0;
  auto add = [&](size_t at, VF& sum, VF& product) HWY_ATTR {
    const VF x = hn::Sub(hn::LoadU(f, s + at), m), e = exp_nonpositive(f, x);
    if constexpr (kStore) hn::StoreU(e, f, s + at);
    sum = hn::Add(sum, e);
    if constexpr (kScores) product = hn::MulAdd(e, hn::Max(x, lowest), product);
  };
  for (j = row.vector_begin; j < row.vector_end;) {
    // Blocks bound the rounding error of long sums.
    const size_t stop = std::min(row.vector_end, j + 512 * kLanes);
    VF sum0 = hn::Zero(f), sum1 = sum0, product0 = sum0, product1 = sum0;
    for (; j + 2 * kLanes <= stop; j += 2 * kLanes) {
      add(j, sum0, product0);
      add(j + kLanes, sum1, product1);
    }
    if (j < stop) {
      add(j, sum0, product0);
      j += kLanes;
    }
    const float part = sum_lanes(hn::Add(sum0, sum1));
    total += part;
    if constexpr (kScores) {
      of_scores += part;
      weighted += sum_lanes(hn::Add(product0, product1));
    }
  }
  r.sum = static_cast<float>(total);
  if (kScores && !apart) {
    const auto nan = static_cast<float>(of_scores);
    r.scores = std::isnan(of_scores)
                   ? ScoreStatistics{nan, nan}
                   : ScoreStatistics{r.largest, static_cast<float>(std::log(of_scores) - weighted / of_scores)};
  }
  return r;
}

HWY_INLINE float sink_of(const Problem& p, const HeadParameters& head) {
  return p.normalizer == Normalizer::softmax_sink ? head.sink : -std::numeric_limits<float>::infinity();
}

HWY_INLINE float offset_of(const Problem& p, const Row& row, const HeadParameters& head) {
  if (p.normalizer != Normalizer::elastic) return 0;
  return p.offset == Offset::per_visible ? head.tau / static_cast<float>(row.count) : head.tau;
}

// s: scores in, weights out. scores: their statistics, if not null.
inline HWY_NOINLINE RowSummary softmax_row(const Problem& p, const Row& row, const HeadParameters& head, float* s,
                                           ScoreStatistics* scores) {
  const F f;
  const auto [largest, sum, sink, of_scores] =
      scores ? exponentiate<true, true>(row, sink_of(p, head), s) : exponentiate<true, false>(row, sink_of(p, head), s);
  if (scores) *scores = of_scores;
  RowSummary summary;
  summary.lse = largest + std::log(sum);
  const float offset = offset_of(p, row, head);
  const VF inverse = hn::Set(f, 1 / sum), add = hn::Set(f, offset), zero = hn::Zero(f);
  summary.alive = row.end - row.begin;
  if (offset == 0 || std::isnan(sum)) {  // a NaN must not be taken for a dead key
    for (size_t j = row.vector_begin; j < row.vector_end; j += kLanes) {
      hn::StoreU(hn::Mul(hn::LoadU(f, s + j), inverse), f, s + j);
    }
    summary.sum = (sum - sink) / sum;
  } else {
    VF total = zero;
    size_t alive = 0;
    for (size_t j = row.vector_begin; j < row.vector_end; j += kLanes) {
      const VF weight = hn::Max(hn::MulAdd(hn::LoadU(f, s + j), inverse, add), zero);
      alive += hn::CountTrue(f, hn::Gt(weight, zero));
      total = hn::Add(total, weight);
      hn::StoreU(weight, f, s + j);
    }
    if (offset < 0) {
      summary.alive = alive;
      summary.sum = sum_lanes(total);
    } else {
      summary.sum = 1 + offset * static_cast<float>(row.end - row.begin);
    }
  }
  return summary;
}

// s: scores in, weights out. g: gradient of the weights in, of the scores out.
//   ds = p (g - sum p g),  g = [alive] dw,  d_offset = sum g,  d_sink = -p_sink sum p g
// Probabilities are recomputed from the row's maximum and sum as in the forward, not from lse. The alive pairs are then
// bit-identical to the forward's, and the rounding of lse does not enter, which g - sum p g would magnify when one key
// holds nearly all of the mass.
inline HWY_NOINLINE RowGradientSums softmax_row_backward(const Problem& p, const Row& row, const HeadParameters& head,
                                                         float* s, float* g) {
  const F f;
  const float offset = offset_of(p, row, head);
  const Exponentials e_row = exponentiate<true, false>(row, sink_of(p, head), s);
  const bool all_alive = offset >= 0 || std::isnan(e_row.sum);
  const VF inverse = hn::Set(f, 1 / e_row.sum), add = hn::Set(f, offset), zero = hn::Zero(f);
  VF delta = zero, total = zero;
  for (size_t j = row.vector_begin; j < row.vector_end; j += kLanes) {
    const VF e = hn::LoadU(f, s + j);
    VF dw = hn::LoadU(f, g + j);
    if (!all_alive) {
      dw = hn::IfThenElseZero(hn::Gt(hn::MulAdd(e, inverse, add), zero), dw);
      hn::StoreU(dw, f, g + j);
    }
    delta = hn::MulAdd(e, dw, delta);
    total = hn::Add(total, dw);
  }
  const float delta_sum = sum_lanes(hn::Mul(delta, inverse));
  const VF vdelta = hn::Set(f, delta_sum);
  for (size_t j = row.vector_begin; j < row.vector_end; j += kLanes) {
    const VF e = hn::LoadU(f, s + j);
    hn::StoreU(hn::Mul(hn::Mul(e, inverse), hn::Sub(hn::LoadU(f, g + j), vdelta)), f, g + j);
    const VF weight = hn::MulAdd(e, inverse, add);
    hn::StoreU(all_alive ? weight : hn::Max(weight, zero), f, s + j);
  }
  return {sum_lanes(total), -e_row.sink / e_row.sum * delta_sum};
}

}  // namespace lazy::kernels::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif
