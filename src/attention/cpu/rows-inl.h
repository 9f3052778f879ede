// One row of a strip of scores: which columns it sees, and what depends on the distance.
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
#include "attention/cpu/vector-inl.h"

HWY_BEFORE_NAMESPACE();
namespace lazy::kernels::cpu::HWY_NAMESPACE {

// Columns of a strip are keys minus the block's keys_begin.
struct Row {
  size_t begin, end;                // visible columns
  size_t vector_begin, vector_end;  // the same, widened to whole vectors
  int64_t position;                 // the query's own column; may lie outside
  int64_t count;                    // visible keys, for the offset: end - begin unless a cache has evicted some
};

HWY_INLINE Row make_row(const Problem& p, const RowBlock& block, int64_t r) {
  const KeyRange keys = visible_keys(p, block.sequence, block.first + r);
  Row row;
  row.begin = static_cast<size_t>(keys.begin - block.keys_begin);
  row.end = static_cast<size_t>(keys.end - block.keys_begin);
  row.vector_begin = row.begin / kLanes * kLanes;
  row.vector_end = round_up(row.end, kLanes);
  row.position = position(block.sequence, block.first + r) - block.keys_begin;
  row.count = keys.count();
  return row;
}

HWY_INLINE void fill(float* s, size_t begin, size_t end, float value) { std::fill(s + begin, s + end, value); }

// Adds distance bias and ALiBi, and sets the columns that the row does not see to -inf within its whole vectors.
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

struct RowSummary {
  float lse = 0;  // or the threshold
  float sum = 0;  // of the weights
  int64_t alive = 0;
  float first = 0;  // weight on the sequence's first key
};

// Of Forward::score_stats.
struct ScoreStatistics {
  float largest = -std::numeric_limits<float>::infinity(), entropy = 0;
};

struct RowGradientSums {
  float d_offset = 0;  // elastic
  float d_sink = 0;    // softmax_sink
};

}  // namespace lazy::kernels::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif
