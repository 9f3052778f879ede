// The products of a row block with all its keys, built from register blocks.
#if defined(LAZY_ATTENTION_CPU_PRODUCTS_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef LAZY_ATTENTION_CPU_PRODUCTS_INL_H_
#undef LAZY_ATTENTION_CPU_PRODUCTS_INL_H_
#else
#define LAZY_ATTENTION_CPU_PRODUCTS_INL_H_
#endif

#include "attention/cpu/block.h"
#include "attention/cpu/gemm-inl.h"

HWY_BEFORE_NAMESPACE();
namespace lazy::kernels::cpu::HWY_NAMESPACE {

constexpr size_t kDepth = 128;  // keys whose rows (a panel wide) stay in L1 while all rows of the block pass by

// First and last visible column of a group of consecutive rows.
HWY_INLINE KeyRange group_range(const Problem& p, const RowBlock& block, size_t r, size_t rows) {
  return {visible_keys(p, block.sequence, block.first + r).begin - block.keys_begin,
          visible_keys(p, block.sequence, block.first + r + rows - 1).end - block.keys_begin};
}

// strip (rows, columns) = scale a (rows, dim) . panels^T; register blocks that no row sees are left as they are.
inline HWY_NOINLINE void times_panels(const Problem& p, const RowBlock& block, const float* a, size_t a_row, size_t dim,
                                      const float* panels, float scale, float* strip, size_t strip_row) {
  const size_t columns = block.keys_end - block.keys_begin;
  panels += block.keys_begin * dim;
  for (size_t c = 0; c < columns; c += kPanel) {
    for (size_t r = 0; r < static_cast<size_t>(block.rows); r += kRows) {
      const size_t rows = std::min<size_t>(kRows, block.rows - r);
      const KeyRange range = group_range(p, block, r, rows);
      if (range.end <= static_cast<int64_t>(c) || range.begin >= static_cast<int64_t>(c + kPanel)) continue;
      block_rows<false, kVectors>(rows, {a + r * a_row, a_row, 1}, panels + c * dim, kPanel, dim,
                                  strip + r * strip_row + c, strip_row, scale);
    }
  }
}

// out (rows, stride) += strip (rows, columns) . keys (columns, stride, sliced). Groups of kRows rows for which
// `skip[group]` is set are left to alive_times_rows; null: none is.
inline HWY_NOINLINE void times_rows(const Problem& p, const RowBlock& block, const float* strip, size_t strip_row,
                                    const bool* skip, const float* keys, size_t all_keys, size_t stride, float* out) {
  const size_t columns = block.keys_end - block.keys_begin;
  for (size_t d = 0; d < stride; d += kPanel) {
    const size_t slice = d / kSlice * kSlice, width = std::min(kSlice, stride - slice);
    const float* rows_of_keys = keys + slice * all_keys + block.keys_begin * width + (d - slice);
    const size_t vectors = std::min(kPanel, stride - d) / kLanes;
    for (size_t c = 0; c < columns; c += kDepth) {
      for (size_t r = 0; r < static_cast<size_t>(block.rows); r += kRows) {
        if (skip && skip[r / kRows]) continue;
        const size_t rows = std::min<size_t>(kRows, block.rows - r);
        const KeyRange range = group_range(p, block, r, rows);
        const size_t begin = std::max<size_t>(c, range.begin), end = std::min<size_t>(c + kDepth, range.end);
        if (begin >= end) continue;
        block_any<true>(rows, vectors, {strip + r * strip_row + begin, strip_row, 1}, rows_of_keys + begin * width,
                        width, end - begin, out + r * stride + d, stride);
      }
    }
  }
}

// keys (columns, stride) += strip^T . a (rows, stride)
inline HWY_NOINLINE void transposed_times(const RowBlock& block, const float* strip, size_t strip_row, const float* a,
                                          size_t stride, float* keys) {
  const size_t columns = std::min(block.keys_end, block.sequence.k_length) - block.keys_begin;
  keys += block.keys_begin * stride;
  for (size_t c = 0; c < columns; c += kRows) {
    const size_t rows = std::min<size_t>(kRows, columns - c);
    for (size_t d = 0; d < stride; d += kPanel) {
      block_any<true>(rows, std::min(kPanel, stride - d) / kLanes, {strip + c, 1, strip_row}, a + d, stride, block.rows,
                      keys + c * stride + d, stride);
    }
  }
}

}  // namespace lazy::kernels::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif
