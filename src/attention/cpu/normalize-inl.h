// The normalizer of a row by name.
#if defined(LAZY_ATTENTION_CPU_NORMALIZE_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef LAZY_ATTENTION_CPU_NORMALIZE_INL_H_
#undef LAZY_ATTENTION_CPU_NORMALIZE_INL_H_
#else
#define LAZY_ATTENTION_CPU_NORMALIZE_INL_H_
#endif

#include "attention/cpu/sigmoid-inl.h"
#include "attention/cpu/softmax-inl.h"
#include "attention/cpu/threshold-inl.h"

HWY_BEFORE_NAMESPACE();
namespace lazy::kernels::cpu::HWY_NAMESPACE {

// s: scores in, weights out; outside the visible columns of [lo, hi) zero. For a row that sees something.
HWY_INLINE RowSummary normalize_row(const Problem& p, const Row& row, const HeadParameters& head, float* s, size_t lo,
                                    size_t hi) {
  RowSummary summary;
  switch (p.normalizer) {
    case Normalizer::softmax:
    case Normalizer::elastic:
    case Normalizer::softmax_sink:
      summary = softmax_row(p, row, head, s);
      break;
    case Normalizer::sigmoid:
      summary = sigmoid_row(p, row, s);
      break;
    case Normalizer::sparsemax:
    case Normalizer::entmax15:
      summary = threshold_row(p, row, s);
      break;
  }
  fill(s, lo, row.begin, 0);
  fill(s, row.end, hi, 0);
  return summary;
}

// One row's products in s to weights, everything outside the visible columns of [0, columns) zero.
HWY_INLINE RowSummary finish_row(const Problem& p, const RowBlock& block, const Row& row, const HeadParameters& head,
                                 float* s, size_t columns) {
  RowSummary summary;
  if (row.begin < row.end) {
    finish_scores(p, row, head, s);
    summary = normalize_row(p, row, head, s, 0, columns);
    if (block.keys_begin == 0 && row.begin == 0) summary.first = s[0];
  } else {
    summary.lse = -std::numeric_limits<float>::infinity();
    fill(s, 0, columns, 0);
  }
  return summary;
}

// lse and statistics of row r of a block. Arguments is Forward<float> or Decode<float>.
template <typename Arguments>
HWY_INLINE void write_summary(const Problem& p, const Arguments& a, const RowBlock& block, int64_t r,
                              const RowSummary& summary) {
  const Sequence& s = block.sequence;
  const int64_t index = (s.batch * p.heads + block.head) * p.q_length + s.q_begin + block.first + r;
  const int64_t part = p.batch * p.heads * p.q_length;
  if (a.lse) a.lse[index] = summary.lse;
  if (a.stats) {
    a.stats[index] = summary.first;
    a.stats[part + index] = 1 - summary.sum;
    a.stats[2 * part + index] = static_cast<float>(summary.alive);
  }
}

// s: scores in, weights out. g: gradient of the weights in, of the scores out. Outside the visible columns of [lo, hi)
// both become zero.
HWY_INLINE RowGradientSums backward_row(const Problem& p, const Row& row, const HeadParameters& head, float* s,
                                        float* g, size_t lo, size_t hi) {
  fill(g, row.vector_begin, row.begin, 0);
  fill(g, row.end, row.vector_end, 0);
  RowGradientSums sums;
  switch (p.normalizer) {
    case Normalizer::softmax:
    case Normalizer::elastic:
    case Normalizer::softmax_sink:
      sums = softmax_row_backward(p, row, head, s, g);
      break;
    case Normalizer::sigmoid:
      sigmoid_row_backward(p, row, s, g);
      break;
    case Normalizer::sparsemax:
    case Normalizer::entmax15:
      threshold_row_backward(p, row, s, g);
      break;
  }
  fill(s, lo, row.begin, 0);
  fill(s, row.end, hi, 0);
  fill(g, lo, row.begin, 0);
  fill(g, row.end, hi, 0);
  return sums;
}

}  // namespace lazy::kernels::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif
