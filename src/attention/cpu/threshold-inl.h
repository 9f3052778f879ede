// Sparsemax and entmax with alpha = 1.5: weights above a threshold that makes them sum to one.
//   sparsemax: w = max(x - theta, 0),   x = s - largest          ds = [w > 0] (g - mean of g over the support)
//   entmax15:  w = max(x - theta, 0)^2, x = (s - largest) / 2    ds = r (g - sum r g / sum r), r = sqrt(w)
// theta lies in [-1, 0). From -1, where the sum is at least one, Newton steps on the convex decreasing sum rise towards
// it and never pass it: a few passes over the row, no sorting.
#if defined(LAZY_ATTENTION_CPU_THRESHOLD_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef LAZY_ATTENTION_CPU_THRESHOLD_INL_H_
#undef LAZY_ATTENTION_CPU_THRESHOLD_INL_H_
#else
#define LAZY_ATTENTION_CPU_THRESHOLD_INL_H_
#endif

#include <cmath>

#include "attention/cpu/rows-inl.h"

HWY_BEFORE_NAMESPACE();
namespace lazy::kernels::cpu::HWY_NAMESPACE {

// Scores above theta: their number, the sum of the excess, the sum of its squares.
struct Above {
  size_t count = 0;
  double sum = 0, squares = 0;
};

inline HWY_NOINLINE Above above(const Row& row, const float* x, float theta) {
  const F f;
  const VF t = hn::Set(f, theta), zero = hn::Zero(f);
  Above total;
  for (size_t j = row.vector_begin; j < row.vector_end;) {
    const size_t stop = std::min(row.vector_end, j + 64 * kLanes);  // blocks bound the rounding error of long sums
    VF sum = zero, squares = zero;
    for (; j < stop; j += kLanes) {
      const VF excess = hn::Max(hn::Sub(hn::LoadU(f, x + j), t), zero);
      total.count += hn::CountTrue(f, hn::Gt(excess, zero));
      sum = hn::Add(sum, excess);
      squares = hn::MulAdd(excess, excess, squares);
    }
    total.sum += sum_lanes(sum);
    total.squares += sum_lanes(squares);
  }
  return total;
}

inline float sparsemax_threshold(const Row& row, const float* x) {
  double theta = -1;
  // Each step takes the support of the last threshold; once it stays, the threshold is exact.
  for (size_t support = std::numeric_limits<size_t>::max();;) {
    const Above a = above(row, x, static_cast<float>(theta));
    theta += (a.sum - 1) / static_cast<double>(a.count);
    if (a.count >= support) return static_cast<float>(theta);
    support = a.count;
  }
}

inline float entmax15_threshold(const Row& row, const float* x) {
  double theta = -1;
  for (size_t support = 0;;) {
    const Above a = above(row, x, static_cast<float>(theta));
    const double step = (a.squares - 1) / (2 * a.sum), n = static_cast<double>(a.count);
    // On a fixed support the sum is a quadratic in theta. Its root is the answer if the support there is the same; from
    // a support that is too large it lies beyond.
    const double discriminant = a.sum * a.sum - n * (a.squares - 1);
    if (a.count == support && discriminant >= 0) {
      const float root = static_cast<float>(theta + (a.squares - 1) / (a.sum + std::sqrt(discriminant)));
      if (above(row, x, root).count == a.count) return root;
    }
    if (!(step > 1e-7)) return static_cast<float>(theta + step);
    theta += step;
    support = a.count;
  }
}

// s: scores in, x out. Returns the largest score; NaN when a score is NaN or +inf, and s is NaN then.
inline HWY_NOINLINE float shift_row(const Row& row, float factor, float* s) {
  const F f;
  VF largest = hn::Set(f, -std::numeric_limits<float>::infinity());
  auto invalid = hn::Lt(largest, largest);
  for (size_t j = row.vector_begin; j < row.vector_end; j += kLanes) {
    const VF score = hn::LoadU(f, s + j);
    invalid = hn::Or(invalid, hn::IsNaN(score));
    largest = hn::Max(largest, score);
  }
  float top = max_lanes(largest);
  if (!hn::AllFalse(f, invalid) || std::isinf(top)) top = std::numeric_limits<float>::quiet_NaN();
  const VF shift = hn::Set(f, top), scale = hn::Set(f, factor);
  for (size_t j = row.vector_begin; j < row.vector_end; j += kLanes) {
    hn::StoreU(hn::Mul(hn::Sub(hn::LoadU(f, s + j), shift), scale), f, s + j);
  }
  return top;
}

// s: scores in, weights out.
inline HWY_NOINLINE RowSummary threshold_row(const Problem& p, const Row& row, float* s) {
  const F f;
  const bool entmax = p.normalizer == Normalizer::entmax15;
  const float factor = entmax ? 0.5f : 1.0f, largest = shift_row(row, factor, s);
  if (std::isnan(largest)) return {largest, largest, static_cast<int64_t>(row.end - row.begin)};
  const float theta = entmax ? entmax15_threshold(row, s) : sparsemax_threshold(row, s);
  RowSummary summary{largest * factor + theta, 1, 0};
  const VF t = hn::Set(f, theta), zero = hn::Zero(f);
  size_t alive = 0;
  for (size_t j = row.vector_begin; j < row.vector_end; j += kLanes) {
    const VF excess = hn::Max(hn::Sub(hn::LoadU(f, s + j), t), zero);
    alive += hn::CountTrue(f, hn::Gt(excess, zero));
    hn::StoreU(entmax ? hn::Mul(excess, excess) : excess, f, s + j);
  }
  summary.alive = static_cast<int64_t>(alive);
  return summary;
}

// s: scores in, weights out. g: gradient of the weights in, of the scores out.
inline HWY_NOINLINE void threshold_row_backward(const Problem& p, const Row& row, float* s, float* g) {
  const F f;
  const bool entmax = p.normalizer == Normalizer::entmax15;
  const VF zero = hn::Zero(f), one = hn::Set(f, 1.0f);
  if (std::isnan(shift_row(row, entmax ? 0.5f : 1.0f, s))) {
    fill(g, row.vector_begin, row.vector_end, std::numeric_limits<float>::quiet_NaN());
    return;
  }
  const VF t = hn::Set(f, entmax ? entmax15_threshold(row, s) : sparsemax_threshold(row, s));
  VF roots = zero, weighted = zero;
  for (size_t j = row.vector_begin; j < row.vector_end; j += kLanes) {
    const VF excess = hn::Max(hn::Sub(hn::LoadU(f, s + j), t), zero);
    const VF root = entmax ? excess : hn::IfThenElseZero(hn::Gt(excess, zero), one);
    roots = hn::Add(roots, root);
    weighted = hn::MulAdd(root, hn::LoadU(f, g + j), weighted);
  }
  const VF mean = hn::Set(f, sum_lanes(weighted) / sum_lanes(roots));
  for (size_t j = row.vector_begin; j < row.vector_end; j += kLanes) {
    const VF excess = hn::Max(hn::Sub(hn::LoadU(f, s + j), t), zero);
    const VF root = entmax ? excess : hn::IfThenElseZero(hn::Gt(excess, zero), one);
    hn::StoreU(hn::Mul(root, hn::Sub(hn::LoadU(f, g + j), mean)), f, g + j);
    hn::StoreU(entmax ? hn::Mul(excess, excess) : excess, f, s + j);
  }
}

}  // namespace lazy::kernels::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif
