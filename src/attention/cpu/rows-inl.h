// One row of a strip: from scores to weights, and from weights' gradients to scores' gradients.
#if defined(LAZY_ATTENTION_CPU_ROWS_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef LAZY_ATTENTION_CPU_ROWS_INL_H_
#undef LAZY_ATTENTION_CPU_ROWS_INL_H_
#else
#define LAZY_ATTENTION_CPU_ROWS_INL_H_
#endif

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <limits>

#include "attention/cpu/block.h"
#include "attention/cpu/exp-inl.h"
#include "attention/cpu/gemm-inl.h"

HWY_BEFORE_NAMESPACE();
namespace lazy::kernels::cpu::HWY_NAMESPACE {

// Columns of a strip are keys minus the block's keys_begin.
struct Row {
  size_t begin, end;            // visible columns
  size_t vector_begin, vector_end;  // the same, widened to whole vectors
  int64_t position;             // the query's own column; may lie outside
};

HWY_INLINE Row make_row(const Problem& p, const RowBlock& block, int64_t r) {
  const KeyRange keys = visible_keys(p, block.sequence, block.first + r);
  Row row;
  row.begin = static_cast<size_t>(keys.begin - block.keys_begin);
  row.end = static_cast<size_t>(keys.end - block.keys_begin);
  row.vector_begin = row.begin / kLanes * kLanes;
  row.vector_end = round_up(row.end, kLanes);
  row.position = position(block.sequence, block.first + r) - block.keys_begin;
  return row;
}

HWY_INLINE void fill(float* s, size_t begin, size_t end, float value) { std::fill(s + begin, s + end, value); }

// Adds what depends on the distance, and hides what the row does not see but its whole vectors contain.
inline HWY_NOINLINE void finish_scores(const Problem& p, const Row& row, const HeadParameters& head, float* s) {
  const F f;
  const int64_t w = p.bias_window;
  if (w > 0) {
    const int64_t from = std::max<int64_t>(row.begin, row.position - w + 1);
    const int64_t to = std::min<int64_t>(row.end, row.position + w);
    const float* bias = head.symmetric_bias + (w - 1 - row.position);
    int64_t j = from;
    for (; j + static_cast<int64_t>(kLanes) <= to; j += kLanes) {
      hn::StoreU(hn::Add(hn::LoadU(f, s + j), hn::LoadU(f, bias + j)), f, s + j);
    }
    for (; j < to; ++j) s[j] += bias[j];
  }
  if (p.alibi) {
    for (size_t j = row.begin; j < row.end; ++j) {
      s[j] -= head.alibi_slope * static_cast<float>(std::abs(row.position - static_cast<int64_t>(j)));
    }
  }
  fill(s, row.vector_begin, row.begin, -std::numeric_limits<float>::infinity());
  fill(s, row.end, row.vector_end, -std::numeric_limits<float>::infinity());
}

HWY_INLINE float offset_of(const Problem& p, const Row& row, const HeadParameters& head) {
  if (p.normalizer != Normalizer::elastic) return 0;
  return p.offset == Offset::per_visible ? head.tau / static_cast<float>(row.end - row.begin) : head.tau;
}

struct RowSummary {
  float lse = 0;
  float sum = 0;      // of the weights
  int64_t alive = 0;
};

// s becomes exp(s - max); returns the maximum and the sum.
inline HWY_NOINLINE std::pair<float, float> exponentiate(const Row& row, float* s) {
  const F f;
  VF m0 = hn::Set(f, -std::numeric_limits<float>::infinity()), m1 = m0;
  size_t j = row.vector_begin;
  for (; j + 2 * kLanes <= row.vector_end; j += 2 * kLanes) {
    m0 = hn::Max(m0, hn::LoadU(f, s + j));
    m1 = hn::Max(m1, hn::LoadU(f, s + j + kLanes));
  }
  if (j < row.vector_end) m0 = hn::Max(m0, hn::LoadU(f, s + j));
  const float largest = max_lanes(hn::Max(m0, m1));
  const VF m = hn::Set(f, largest);
  double total = 0;
  for (j = row.vector_begin; j < row.vector_end;) {
    // Blocks bound the rounding error of long sums.
    const size_t stop = std::min(row.vector_end, j + 512 * kLanes);
    VF sum0 = hn::Zero(f), sum1 = hn::Zero(f);
    for (; j + 2 * kLanes <= stop; j += 2 * kLanes) {
      const VF e0 = exp_nonpositive(f, hn::Sub(hn::LoadU(f, s + j), m));
      const VF e1 = exp_nonpositive(f, hn::Sub(hn::LoadU(f, s + j + kLanes), m));
      hn::StoreU(e0, f, s + j);
      hn::StoreU(e1, f, s + j + kLanes);
      sum0 = hn::Add(sum0, e0);
      sum1 = hn::Add(sum1, e1);
    }
    if (j < stop) {
      const VF e0 = exp_nonpositive(f, hn::Sub(hn::LoadU(f, s + j), m));
      hn::StoreU(e0, f, s + j);
      sum0 = hn::Add(sum0, e0);
      j += kLanes;
    }
    total += sum_lanes(hn::Add(sum0, sum1));
  }
  return {largest, static_cast<float>(total)};
}

// s: scores in, weights out; outside the visible columns of [lo, hi) zero.
inline HWY_NOINLINE RowSummary normalize_row(const Problem& p, const Row& row, const HeadParameters& head, float* s, size_t lo,
                                    size_t hi) {
  const F f;
  const auto [largest, sum] = exponentiate(row, s);
  RowSummary summary;
  summary.lse = largest + std::log(sum);
  const float offset = offset_of(p, row, head);
  const VF inverse = hn::Set(f, 1 / sum), add = hn::Set(f, offset), zero = hn::Zero(f);
  summary.alive = row.end - row.begin;
  if (offset == 0) {
    for (size_t j = row.vector_begin; j < row.vector_end; j += kLanes) {
      hn::StoreU(hn::Mul(hn::LoadU(f, s + j), inverse), f, s + j);
    }
    summary.sum = 1;
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
  fill(s, lo, row.begin, 0);
  fill(s, row.end, hi, 0);
  return summary;
}

struct RowGradientSums {
  float d_offset = 0;
};

// s: scores in, weights out. g: gradient of the weights in, of the scores out. Outside the visible columns of [lo, hi)
// both become zero.
//   ds = p (g - sum p g),  g = [alive] dw,  d_offset = sum g      (SPEC section 2)
// Probabilities come from the row's maximum and sum as in the forward, not from lse: the alive pairs are then the
// forward's to the bit, and lse's own rounding, which g - sum p g would magnify where one key holds nearly all of the
// mass, does not enter.
inline HWY_NOINLINE RowGradientSums backward_row(const Problem& p, const Row& row, const HeadParameters& head, float* s,
                                                 float* g, size_t lo, size_t hi) {
  const F f;
  const float offset = offset_of(p, row, head);
  const bool all_alive = offset >= 0;
  fill(g, row.vector_begin, row.begin, 0);
  fill(g, row.end, row.vector_end, 0);
  const VF inverse = hn::Set(f, 1 / exponentiate(row, s).second), add = hn::Set(f, offset), zero = hn::Zero(f);
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
  const VF vdelta = hn::Set(f, sum_lanes(hn::Mul(delta, inverse)));
  for (size_t j = row.vector_begin; j < row.vector_end; j += kLanes) {
    const VF e = hn::LoadU(f, s + j);
    hn::StoreU(hn::Mul(hn::Mul(e, inverse), hn::Sub(hn::LoadU(f, g + j), vdelta)), f, g + j);
    const VF weight = hn::MulAdd(e, inverse, add);
    hn::StoreU(all_alive ? weight : hn::Max(weight, zero), f, s + j);
  }
  fill(s, lo, row.begin, 0);
  fill(s, row.end, hi, 0);
  fill(g, lo, row.begin, 0);
  fill(g, row.end, hi, 0);
  return {sum_lanes(total)};
}

}  // namespace lazy::kernels::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif
