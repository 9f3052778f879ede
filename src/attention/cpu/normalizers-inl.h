// Forward and backward of every normalizer for one row of scores, and the dispatch by Problem::normalizer.
#if defined(LAZY_ATTENTION_CPU_NORMALIZERS_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef LAZY_ATTENTION_CPU_NORMALIZERS_INL_H_
#undef LAZY_ATTENTION_CPU_NORMALIZERS_INL_H_
#else
#define LAZY_ATTENTION_CPU_NORMALIZERS_INL_H_
#endif

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <limits>

#include "attention/cpu/block.h"
#include "attention/cpu/vector-inl.h"

HWY_BEFORE_NAMESPACE();
namespace lazy::kernels::cpu::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

// --- A row of a strip of scores: its visible columns, and the terms that depend on the distance ---

// A row of a strip, which is the matrix (rows x keys) of scores or weights of a block. The column of a key is its index
// minus RowBlock::keys_begin.
struct StripRow {
  size_t begin, end;                // visible columns
  size_t vector_begin, vector_end;  // the visible columns, widened to whole vectors
  int64_t position;                 // column of the key at the query's position; may be outside of the matrix of scores
  int64_t count;                    // c in the elastic offset tau / c; differs from end - begin if keys were evicted
};

HWY_INLINE StripRow make_row(const Problem& p, const RowBlock& block, int64_t r) {
  const KeyRange keys = visible_keys(p, block.sequence, block.first + r);
  StripRow row;
  row.begin = static_cast<size_t>(keys.begin - block.keys_begin);
  row.end = static_cast<size_t>(keys.end - block.keys_begin);
  row.vector_begin = row.begin / kLanes * kLanes;
  row.vector_end = round_up(row.end, kLanes);
  row.position = position(block.sequence, block.first + r) - block.keys_begin;
  row.count = keys.count();
  return row;
}

HWY_INLINE void fill(float* s, size_t begin, size_t end, float value) { std::fill(s + begin, s + end, value); }

// Converts s from x = scale q . k / softcap to the score softcap tanh(x). If `slopes` is not null, it receives the
// derivatives 1 - tanh(x)^2.
inline HWY_NOINLINE void cap_scores(const Problem& p, const StripRow& row, float* s, float* slopes) {
  const F f;
  const VF softcap = hn::Set(f, static_cast<float>(p.softcap));
  for (size_t j = row.vector_begin; j < row.vector_end; j += kLanes) {
    const auto [value, slope] = tanh_and_slope(f, hn::LoadU(f, s + j));
    hn::StoreU(hn::Mul(softcap, value), f, s + j);
    if (slopes) hn::StoreU(slope, f, slopes + j);
  }
}

// Converts products (already multiplied by product_scale of block.h) to scores: applies softcap, distance bias and
// ALiBi. Masked columns within the row's whole vectors become -inf. `slopes` (see cap_scores) is only set if there is a
// softcap.
inline HWY_NOINLINE void finish_scores(const Problem& p, const StripRow& row, const HeadParameters& head, float* s,
                                       float* slopes = nullptr) {
  const F f;
  if (p.softcap > 0) cap_scores(p, row, s, slopes);
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

struct RowSummary {
  float lse = 0;  // log-sum-exp or threshold, see Forward::lse
  float sum = 0;  // sum of the weights
  int64_t alive = 0;
  float first = 0;  // weight on the sequence's first key
};

// Values of Forward::score_stats for one row.
struct ScoreStatistics {
  float largest = -std::numeric_limits<float>::infinity(), entropy = 0;
};

struct RowGradientSums {
  float d_offset = 0;  // gradient of the offset, for elastic and elastic_sink
  float d_sink = 0;    // gradient of the sink, for softmax_sink and elastic_sink
};

// --- Softmax and Elastic-Softmax, both also with a sink (gpt-oss) ---

struct Exponentials {
  float largest, sum;  // maximum score, and sum of exp(score - largest); both include the sink
  float sink;          // exp(sink - largest)
  ScoreStatistics scores;
};

// Computes e = exp(x) with x = s - largest for a row of scores s, and the sum of e. `sink` is an additional score in
// the maximum and in the sum; it is -inf if the normalizer has no sink. kStore: s is overwritten with e. kScores: also
// computes the statistics of the scores, for which masked columns must be -inf:
//   entropy = ln(sum of e) - (sum of e x) / (sum of e)
template <bool kStore, bool kScores>
HWY_NOINLINE Exponentials exponentiate(const StripRow& row, float sink, float* s) {
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
  // If the sink is above all scores, exp(score - sink) may underflow, so that the statistics of the scores cannot be
  // computed from it. A separate call without the sink then computes the statistics.
  const bool apart = kScores && sink > kNone && sink >= r.largest;
  if (apart) r.scores = exponentiate<false, true>(row, kNone, s).scores;
  const VF m = hn::Set(f, r.largest), lowest = hn::Set(f, -128.0f);  // limits x in e x, because 0 * -inf is NaN
  double total = r.sink, of_scores = 0, weighted = 0;
  auto add = [&](size_t at, VF& sum, VF& product) HWY_ATTR {
    const VF x = hn::Sub(hn::LoadU(f, s + at), m), e = exp_nonpositive(f, x);
    if constexpr (kStore) hn::StoreU(e, f, s + at);
    sum = hn::Add(sum, e);
    if constexpr (kScores) product = hn::MulAdd(e, hn::Max(x, lowest), product);
  };
  for (j = row.vector_begin; j < row.vector_end;) {
    // Sums are computed in blocks to bound their rounding error.
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
  return traits(p.normalizer).takes_sink ? head.sink : -std::numeric_limits<float>::infinity();
}

HWY_INLINE float offset_of(const Problem& p, const StripRow& row, const HeadParameters& head) {
  if (!traits(p.normalizer).takes_tau) return 0;
  return p.offset == Offset::per_visible ? head.tau / static_cast<float>(row.count) : head.tau;
}

// Computes one row of softmax. s: scores on input, weights on output. If `scores` is not null, it receives the
// statistics of the scores.
inline HWY_NOINLINE RowSummary softmax_row(const Problem& p, const StripRow& row, const HeadParameters& head, float* s,
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
  summary.sum = (sum - sink) / sum;      // sum of the probabilities
  if (offset == 0 || std::isnan(sum)) {  // for a NaN too, because the maximum with zero below could turn it into zero
    for (size_t j = row.vector_begin; j < row.vector_end; j += kLanes) {
      hn::StoreU(hn::Mul(hn::LoadU(f, s + j), inverse), f, s + j);
    }
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
      summary.sum += offset * static_cast<float>(row.end - row.begin);
    }
  }
  return summary;
}

// Backward of one row of softmax. s: scores on input, weights on output. g: gradient of the weights (dw) on input,
// gradient of the scores (ds) on output.
//   ds = p (g - sum p g),  g = [weight > 0] dw,  d_offset = sum g,  d_sink = -p_sink sum p g
// As in the forward, the probabilities p are computed from the row's maximum and sum, not from lse. The same weights
// are then zero as in the forward. This also avoids the rounding error of lse, which g - sum p g would amplify if one
// key has nearly all of the weight.
inline HWY_NOINLINE RowGradientSums softmax_row_backward(const Problem& p, const StripRow& row,
                                                         const HeadParameters& head, float* s, float* g) {
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

// --- Sparsemax and entmax with alpha = 1.5 ---
//
// The weights w are powers of the excess over a threshold theta, which is defined by sum of weights = 1. With g = the
// gradient of w, and with the support defined as the set of keys with w > 0:
//   sparsemax: w = max(x - theta, 0),   x = s - largest          ds = [w > 0] (g - mean of g over the support)
//   entmax15:  w = max(x - theta, 0)^2, x = (s - largest) / 2    ds = r (g - sum r g / sum r), r = sqrt(w)
// theta is in [-1, 0). The sum of weights is a convex, decreasing function of theta, and it is at least one at theta =
// -1. Newton's method from -1 therefore increases theta towards the root and never passes it. This needs a few passes
// over the row and no sorting.

// Statistics of the scores x above theta: their number, the sum of x - theta, and the sum of (x - theta)^2.
struct Above {
  size_t count = 0;
  double sum = 0, squares = 0;
};

inline HWY_NOINLINE Above above(const StripRow& row, const float* x, float theta) {
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

inline float sparsemax_threshold(const StripRow& row, const float* x) {
  double theta = -1;
  // Each iteration computes the solution theta for the support (the set of scores above the threshold) of the previous
  // threshold. When the support no longer changes, the threshold is exact.
  for (size_t support = std::numeric_limits<size_t>::max();;) {
    const Above a = above(row, x, static_cast<float>(theta));
    theta += (a.sum - 1) / static_cast<double>(a.count);
    if (a.count >= support) return static_cast<float>(theta);
    support = a.count;
  }
}

inline float entmax15_threshold(const StripRow& row, const float* x) {
  double theta = -1;
  for (size_t support = 0;;) {
    const Above a = above(row, x, static_cast<float>(theta));
    const double step = (a.squares - 1) / (2 * a.sum), n = static_cast<double>(a.count);
    // For a fixed support (the set of scores above theta), the sum of weights is a quadratic function of theta, and
    // `root` is the theta at which this function is one. `root` is the solution if the scores above it form the same
    // support. If the support is too large, `root` is above the solution.
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

// Converts the scores s to x = factor * (s - largest score) and returns the largest score. If a score is NaN or +inf,
// returns NaN and sets s to NaN.
inline HWY_NOINLINE float shift_row(const StripRow& row, float factor, float* s) {
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

// Computes one row of sparsemax or entmax-1.5. s: scores on input, weights on output.
inline HWY_NOINLINE RowSummary threshold_row(const Problem& p, const StripRow& row, float* s) {
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

// Backward of one row of sparsemax or entmax-1.5. s: scores on input, weights on output. g: gradient of the weights on
// input, gradient of the scores on output.
inline HWY_NOINLINE void threshold_row_backward(const Problem& p, const StripRow& row, float* s, float* g) {
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

// --- Sigmoid and softpick ---

HWY_INLINE float sigmoid_bias_of(const Problem& p, const StripRow& row) {
  if (!std::isnan(p.sigmoid_bias)) return static_cast<float>(p.sigmoid_bias);
  return -std::log(static_cast<float>(row.count));
}

// Returns the weight w = 1 / (1 + exp(-x)) and, if `complement` is not null, 1 - w. Both are computed without
// cancellation: with e = exp(-|x|), the larger of them is 1 / (1 + e) and the smaller is e / (1 + e). A masked column
// (score -inf) gives 0.
HWY_INLINE VF sigmoid_weight(VF x, VF* complement) {
  const F f;
  const VF e = exp_nonpositive(f, hn::Neg(hn::Abs(x))), one = hn::Set(f, 1.0f);
  const VF inverse = hn::Div(one, hn::Add(one, e)), small = hn::Mul(e, inverse);
  const auto negative = hn::Lt(x, hn::Zero(f));
  if (complement) *complement = hn::IfThenElse(negative, inverse, small);
  return hn::IfThenElse(negative, small, inverse);
}

// Computes one row of sigmoid attention. s: scores on input, weights on output.
inline HWY_NOINLINE RowSummary sigmoid_row(const Problem& p, const StripRow& row, float* s) {
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

// Backward of one row of sigmoid attention. s: scores on input, weights on output. g: gradient of the weights on input,
// gradient of the scores on output, which is ds = w (1 - w) g.
inline HWY_NOINLINE void sigmoid_row_backward(const Problem& p, const StripRow& row, float* s, float* g) {
  const F f;
  const VF bias = hn::Set(f, sigmoid_bias_of(p, row));
  for (size_t j = row.vector_begin; j < row.vector_end; j += kLanes) {
    VF complement;
    const VF weight = sigmoid_weight(hn::Add(hn::LoadU(f, s + j), bias), &complement);
    hn::StoreU(weight, f, s + j);
    hn::StoreU(hn::Mul(hn::Mul(weight, complement), hn::LoadU(f, g + j)), f, g + j);
  }
}

// Softpick. With m = max(largest score, 0), excess = exp(s - m) - exp(-m) and eps = kSoftpickEpsilon:
//   weight = max(excess, 0) / (sum of |excess| + eps)
struct SoftpickStatistics {
  float m, sum;          // sum: sum of |excess| plus eps
  VF base, unit, total;  // vectors of m, exp(-m) and sum
  HWY_INLINE VF exponential(VF s) const { return exp_nonpositive(F(), hn::Sub(s, base)); }
  // The weight is zero for s <= 0; a NaN stays a NaN. If the row has only one key, the division is exact: the weight is
  // then exactly one, and the gradient of the score, p (g - sum w g), has no rounding error. A multiplication by 1 /
  // sum instead of the division would not be exact.
  HWY_INLINE VF weight(VF s, VF exponential) const {
    const F f;
    const VF w = hn::Div(hn::Sub(exponential, unit), total), zero = hn::Zero(f);
    return hn::IfThenZeroElse(hn::Or(hn::Le(s, zero), hn::Lt(w, zero)), w);
  }
};

inline HWY_NOINLINE SoftpickStatistics softpick_statistics(const StripRow& row, const float* s) {
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

// Computes one row of softpick. s: scores on input, weights on output.
inline HWY_NOINLINE RowSummary softpick_row(const StripRow& row, float* s) {
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

// Backward of one row of softpick. s: scores on input, weights on output. g: gradient of the weights on input, gradient
// of the scores on output. With p = exp(s - m) / sum and delta = sum w g: ds = p (g - delta) for s > 0, p delta for s <
// 0, 0 for s = 0.
inline HWY_NOINLINE void softpick_row_backward(const StripRow& row, float* s, float* g) {
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

// --- Dispatch by normalizer ---

// The forward pass of one row. s: scores on input, weights on output. If `scores` is not null, it receives the
// statistics of the scores.
HWY_INLINE RowSummary row_weights(const Problem& p, const StripRow& row, const HeadParameters& head, float* s,
                                  ScoreStatistics* scores) {
  // softmax_row computes the statistics of the scores from exponentials that it needs anyway. The other families need a
  // separate pass over the row.
  if (scores && traits(p.normalizer).family != NormalizerFamily::exponential) {
    *scores = exponentiate<false, true>(row, -std::numeric_limits<float>::infinity(), s).scores;
  }
  switch (p.normalizer) {
    case Normalizer::softmax:
    case Normalizer::elastic:
    case Normalizer::softmax_sink:
    case Normalizer::elastic_sink:
      return softmax_row(p, row, head, s, scores);
    case Normalizer::sigmoid:
      return sigmoid_row(p, row, s);
    case Normalizer::sparsemax:
    case Normalizer::entmax15:
      return threshold_row(p, row, s);
    case Normalizer::softpick:
      return softpick_row(row, s);
  }
  std::abort();  // not reached: unmet_condition rejects other values
}

// The backward pass of one row. s: scores on input, weights on output. g: gradient of the weights on input, gradient of
// the scores on output.
HWY_INLINE RowGradientSums row_gradients(const Problem& p, const StripRow& row, const HeadParameters& head, float* s,
                                         float* g) {
  switch (p.normalizer) {
    case Normalizer::softmax:
    case Normalizer::elastic:
    case Normalizer::softmax_sink:
    case Normalizer::elastic_sink:
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

// Converts the scores of a row to weights. s: scores on input, weights on output. The columns of [lo, hi) that are not
// visible become zero. The row must see at least one key. scores: see row_weights.
HWY_INLINE RowSummary normalize_row(const Problem& p, const StripRow& row, const HeadParameters& head, float* s,
                                    size_t lo, size_t hi, ScoreStatistics* scores) {
  const RowSummary summary = row_weights(p, row, head, s, scores);
  fill(s, lo, row.begin, 0);
  fill(s, row.end, hi, 0);
  return summary;
}

// Converts the products of row r of a block, which are in s, to weights, and stores the row's lse and statistics.
// Columns of [0, columns) that are not visible become zero. Arguments is Forward<float> or Decode<float>.
template <typename Arguments>
HWY_INLINE RowSummary finish_row(const Problem& p, const Arguments& a, const RowBlock& block, int64_t r,
                                 const StripRow& row, const HeadParameters& head, float* s, size_t columns) {
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

// Backward of a row. s: scores on input, weights on output. g: gradient of the weights on input, gradient of the scores
// on output. Both become zero in the columns of [lo, hi) that are not visible.
HWY_INLINE RowGradientSums backward_row(const Problem& p, const StripRow& row, const HeadParameters& head, float* s,
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
