// The matrix products between the query rows of a block and its keys. All products use one micro-kernel, which computes
//   C[r][c] = scale sum_k A[r * a_row + k * a_step] B[k * b_step + c]   or   C[r][c] += the same sum without `scale`.
// Elements of A are broadcast, and B is read as vectors. A block of C with 6 rows and kVectors vectors per row (a
// register block) stays in registers: it takes 24 of the 32 registers with AVX-512 and 12 of the 16 registers with
// AVX2.
#if defined(LAZY_ATTENTION_CPU_PRODUCTS_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef LAZY_ATTENTION_CPU_PRODUCTS_INL_H_
#undef LAZY_ATTENTION_CPU_PRODUCTS_INL_H_
#else
#define LAZY_ATTENTION_CPU_PRODUCTS_INL_H_
#endif

#include <algorithm>
#include <cstddef>
#include <utility>

#include "attention/cpu/block.h"
#include "attention/cpu/vector-inl.h"

HWY_BEFORE_NAMESPACE();
namespace lazy::kernels::cpu::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

constexpr int kRows = 6;                        // rows of a register block
constexpr int kVectors = kLanes >= 16 ? 4 : 2;  // vectors per row of a register block
constexpr size_t kPanel = kVectors * kLanes;    // columns of a register block

struct Operand {
  const float* data;
  size_t row, step;  // strides of the operand along the rows of C (row) and along the summed index k (step)
};

// Micro-kernel for kR rows and kV vectors of columns. If kAdd is true, it adds to C; otherwise it overwrites C with the
// sum times `scale`.
template <int kR, int kV, bool kAdd>
HWY_INLINE void block(const Operand a, const float* HWY_RESTRICT b, const size_t b_step, const size_t depth,
                      float* HWY_RESTRICT c, const size_t c_row, const float scale) {
  const F f;
  VF sum[kR][kV];
  HWY_UNROLL(6)
  for (int r = 0; r < kR; ++r) {
    HWY_UNROLL(4)
    for (int v = 0; v < kV; ++v) sum[r][v] = kAdd ? hn::LoadU(f, c + r * c_row + v * kLanes) : hn::Zero(f);
  }
  const float* HWY_RESTRICT ap = a.data;
  for (size_t k = 0; k < depth; ++k, b += b_step, ap += a.step) {
    VF bv[kV];
    HWY_UNROLL(4)
    for (int v = 0; v < kV; ++v) bv[v] = hn::LoadU(f, b + v * kLanes);
    HWY_UNROLL(6)
    for (int r = 0; r < kR; ++r) {
      const VF av = hn::Set(f, ap[r * a.row]);
      HWY_UNROLL(4)
      for (int v = 0; v < kV; ++v) sum[r][v] = hn::MulAdd(av, bv[v], sum[r][v]);
    }
  }
  HWY_UNROLL(6)
  for (int r = 0; r < kR; ++r) {
    HWY_UNROLL(4)
    for (int v = 0; v < kV; ++v) {
      hn::StoreU(kAdd ? sum[r][v] : hn::Mul(sum[r][v], hn::Set(f, scale)), f, c + r * c_row + v * kLanes);
    }
  }
}

// Calls block() for `rows` rows (1 to kRows) and kV vectors of columns.
template <bool kAdd, int kV>
HWY_INLINE void block_rows(size_t rows, const Operand a, const float* b, size_t b_step, size_t depth, float* c,
                           size_t c_row, float scale = 1) {
  switch (rows) {
    case 6:
      return block<6, kV, kAdd>(a, b, b_step, depth, c, c_row, scale);
    case 5:
      return block<5, kV, kAdd>(a, b, b_step, depth, c, c_row, scale);
    case 4:
      return block<4, kV, kAdd>(a, b, b_step, depth, c, c_row, scale);
    case 3:
      return block<3, kV, kAdd>(a, b, b_step, depth, c, c_row, scale);
    case 2:
      return block<2, kV, kAdd>(a, b, b_step, depth, c, c_row, scale);
    case 1:
      return block<1, kV, kAdd>(a, b, b_step, depth, c, c_row, scale);
  }
}

template <bool kAdd>
HWY_INLINE void block_any(size_t rows, size_t vectors, const Operand a, const float* b, size_t b_step, size_t depth,
                          float* c, size_t c_row) {
  switch (vectors) {
    case 4:
      return block_rows<kAdd, kVectors>(rows, a, b, b_step, depth, c, c_row);
    case 3:
      return block_rows<kAdd, std::min(3, kVectors)>(rows, a, b, b_step, depth, c, c_row);
    case 2:
      return block_rows<kAdd, std::min(2, kVectors)>(rows, a, b, b_step, depth, c, c_row);
    case 1:
      return block_rows<kAdd, 1>(rows, a, b, b_step, depth, c, c_row);
  }
}

// Number of keys per iteration of the products that sum over keys. It is small enough that kPanel columns of these
// keys' rows stay in L1 while all query rows of the block use them.
constexpr size_t kDepth = 128;

// Returns the range of columns that at least one of the rows [r, r + rows) of the block sees.
HWY_INLINE KeyRange group_range(const Problem& p, const RowBlock& block, size_t r, size_t rows) {
  return {visible_keys(p, block.sequence, block.first + r).begin - block.keys_begin,
          visible_keys(p, block.sequence, block.first + r + rows - 1).end - block.keys_begin};
}

// Computes strip (rows, columns) = scale * a (rows, dim) . panels^T, where `panels` contains the packed keys or values.
// Register blocks whose rows see none of the keys are not written.
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

// Computes out (rows, stride) += strip (rows, columns) . keys (columns, stride), where keys are stored in slices (see
// PackedKeys). Groups of kRows rows for which skip[group] is set are skipped: alive_times_rows processes them, because
// few of their weights are nonzero. If `skip` is null, no group is skipped.
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

// Computes keys (columns, stride) += strip^T . a (rows, stride). The backward accumulates dK and dV with it.
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
