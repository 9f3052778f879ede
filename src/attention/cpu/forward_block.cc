// Forward of one block of rows: computes a matrix of scores (rows x keys, called a strip), applies the normalizer to
// each row, and computes the weighted sum of values.
#include "attention/cpu/targets.h"
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "attention/cpu/forward_block.cc"
#include "hwy/foreach_target.h"
// These headers must be included after foreach_target.h.
#include "attention/cpu/alive-inl.h"
#include "attention/cpu/block.h"
#include "attention/cpu/convert-inl.h"
#include "attention/cpu/normalizers-inl.h"
#include "attention/cpu/products-inl.h"
#include "attention/cpu/schedule.h"

HWY_BEFORE_NAMESPACE();
namespace lazy::kernels::cpu::HWY_NAMESPACE {

void forward_block(const Problem& p, const Forward<float>& a, const RowBlock& block, const HeadParameters& head,
                   const PackedKeys& packed, float* scratch) {
  const Sequence& s = block.sequence;
  const size_t rows = block.rows, columns = block.keys_end - block.keys_begin, stride = strip_stride(columns);
  float* q = scratch;
  float* out = q + aligned_floats(rows * p.head_dim);
  float* strip = out + rows * packed.v_stride;
  for (size_t r = 0; r < rows; ++r) {
    load_row(p.dtype, a.q.data, s.batch * a.q.batch + (s.q_begin + block.first + r) * a.q.token + block.head * a.q.head,
             a.q.dim, p.head_dim, 1.0f, q + r * p.head_dim);
  }
  std::fill_n(out, rows * packed.v_stride, 0.0f);
  times_panels(p, block, q, p.head_dim, p.head_dim, packed.k_panels, product_scale(p), strip, stride);
  bool sparse[kMaxRows / kRows] = {};
  for (size_t group = 0; group < rows; group += kRows) {
    const size_t last = std::min<size_t>(group + kRows, rows);
    int64_t alive_pairs = 0, visible_pairs = 0;
    for (size_t r = group; r < last; ++r) {
      const StripRow row = make_row(p, block, r);
      const RowSummary summary =
          finish_row(p, a, block, static_cast<int64_t>(r), row, head, strip + r * stride, columns);
      alive_pairs += summary.alive;
      visible_pairs += row.end - row.begin;
    }
    sparse[group / kRows] = static_cast<double>(alive_pairs) < kDenseShare * static_cast<double>(visible_pairs);
  }
  times_rows(p, block, strip, stride, sparse, packed.v_rows, packed.keys, packed.v_stride, out);
  alive_times_rows(p, block, strip, stride, sparse, packed.v_rows, packed.keys, packed.v_stride, out);
  for (size_t r = 0; r < rows; ++r) {
    store_row(p.dtype, out + r * packed.v_stride, p.value_dim, 1.0f, a.out.data,
              s.batch * a.out.batch + (s.q_begin + block.first + r) * a.out.token + block.head * a.out.head, a.out.dim);
  }
}

}  // namespace lazy::kernels::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace lazy::kernels::cpu {

HWY_EXPORT(forward_block);

void forward_block(const Problem& p, const Forward<float>& a, const RowBlock& block, const HeadParameters& head,
                   const PackedKeys& packed, float* scratch) {
  HWY_DYNAMIC_DISPATCH(forward_block)(p, a, block, head, packed, scratch);
}

size_t forward_scratch(const Problem& p, int64_t rows, int64_t columns) {
  return aligned_floats(rows * p.head_dim) + rows * round_up(p.value_dim, 16) + rows * strip_stride(columns);
}

}  // namespace lazy::kernels::cpu
#endif
