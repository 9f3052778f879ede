// Backward of one block of query rows. It uses two matrices of shape (rows, keys), called strips. The first strip
// contains the scores, which are converted to weights. The second strip contains dO . V^T, the gradients of the
// weights, which are converted to gradients of the scores. Because the strips contain whole rows, the sum over the keys
// of probability times gradient is computed directly, and the output of the forward is not needed.
#include "attention/cpu/targets.h"
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "attention/cpu/backward_block.cc"
#include "hwy/foreach_target.h"
// These headers must be included after foreach_target.h.
#include "attention/cpu/block.h"
#include "attention/cpu/convert-inl.h"
#include "attention/cpu/normalizers-inl.h"
#include "attention/cpu/products-inl.h"
#include "attention/cpu/schedule.h"

HWY_BEFORE_NAMESPACE();
namespace lazy::kernels::cpu::HWY_NAMESPACE {

void load_block(const Problem& p, const ConstView& view, const RowBlock& block, size_t dim, size_t stride, float* to) {
  const Sequence& s = block.sequence;
  for (int64_t r = 0; r < block.rows; ++r) {
    const int64_t token = s.q_begin + block.first + r;
    load_row(p.dtype, view.data, s.batch * view.batch + token * view.token + block.head * view.head, view.dim, dim,
             1.0f, to + r * stride);
    fill(to + r * stride, dim, stride, 0);
  }
}

// Adds a row of score gradients ds to the gradients of the distance bias and of the ALiBi slope. The gradient of the
// distance bias is indexed by signed distance (see symmetric_bias_size in block.h), so that a row of scores adds to a
// contiguous range.
HWY_INLINE void add_position_gradients(const Problem& p, const StripRow& row, const float* ds,
                                       const GradientSlab& slab) {
  const F f;
  if (slab.d_symmetric_bias) {
    const int64_t w = p.bias_window;
    const int64_t from = std::max<int64_t>(row.begin, row.position - w + 1);
    const int64_t to = std::min<int64_t>(row.end, row.position + w);
    float* d_bias = slab.d_symmetric_bias + (w - 1 - row.position);
    int64_t j = from;
    for (; j + static_cast<int64_t>(kLanes) <= to; j += kLanes) {
      hn::StoreU(hn::Add(hn::LoadU(f, d_bias + j), hn::LoadU(f, ds + j)), f, d_bias + j);
    }
    for (; j < to; ++j) d_bias[j] += ds[j];
  }
  if (p.alibi) {
    double sum = 0;
    for (size_t j = row.begin; j < row.end; ++j) {
      sum -= static_cast<double>(ds[j]) * static_cast<double>(std::abs(row.position - static_cast<int64_t>(j)));
    }
    slab.d_scalars[2] += sum;
  }
}

// Multiplies the gradients of the scores, ds, by the derivatives of the softcap, `slopes`. The results are the
// gradients of scale * (q . k).
HWY_INLINE void scale_gradients(const StripRow& row, const float* slopes, float* ds) {
  const F f;
  for (size_t j = row.vector_begin; j < row.vector_end; j += kLanes) {
    hn::StoreU(hn::Mul(hn::LoadU(f, ds + j), hn::LoadU(f, slopes + j)), f, ds + j);
  }
  fill(ds, row.vector_begin, row.begin, 0);  // a masked column may have a NaN slope, but its gradient must be zero
  fill(ds, row.end, row.vector_end, 0);
}

void backward_block(const Problem& p, const Backward<float>& a, const RowBlock& block, const HeadParameters& head,
                    const PackedKeys& packed, const GradientSlab& slab, float* scratch) {
  const Sequence& s = block.sequence;
  const size_t rows = block.rows, columns = block.keys_end - block.keys_begin, stride = strip_stride(columns);
  float* q = scratch;
  float* d_out = q + rows * packed.k_stride;
  float* d_q = d_out + rows * packed.v_stride;
  float* weights = d_q + rows * packed.k_stride;
  float* gradients = weights + rows * stride;
  float* slopes =
      p.softcap > 0 ? gradients + rows * stride : nullptr;  // the softcap's derivatives for one row of scores
  load_block(p, a.q, block, p.head_dim, packed.k_stride, q);
  load_block(p, a.d_out, block, p.value_dim, packed.v_stride, d_out);
  times_panels(p, block, q, packed.k_stride, p.head_dim, packed.k_panels, product_scale(p), weights, stride);
  times_panels(p, block, d_out, packed.v_stride, p.value_dim, packed.v_panels, 1.0f, gradients, stride);
  for (size_t r = 0; r < rows; ++r) {
    const StripRow row = make_row(p, block, r);
    float* scores = weights + r * stride;
    float* ds = gradients + r * stride;
    if (row.begin >= row.end) {
      fill(scores, 0, columns, 0);
      fill(ds, 0, columns, 0);
      continue;
    }
    finish_scores(p, row, head, scores, slopes);
    const RowGradientSums sums = backward_row(p, row, head, scores, ds, 0, columns);
    const double count = static_cast<double>(row.end - row.begin);
    slab.d_scalars[0] += p.offset == Offset::per_visible ? sums.d_offset / count : sums.d_offset;
    slab.d_scalars[1] += sums.d_sink;
    add_position_gradients(p, row, ds, slab);
    if (slopes) scale_gradients(row, slopes, ds);
  }
  if (a.d_v.data) transposed_times(block, weights, stride, d_out, packed.v_stride, slab.d_v);
  if (a.d_k.data) transposed_times(block, gradients, stride, q, packed.k_stride, slab.d_k);
  if (a.d_q.data) {
    std::fill_n(d_q, rows * packed.k_stride, 0.0f);
    times_rows(p, block, gradients, stride, nullptr, packed.k_rows, packed.keys, packed.k_stride, d_q);
    for (size_t r = 0; r < rows; ++r) {
      store_row(p.dtype, d_q + r * packed.k_stride, p.head_dim, static_cast<float>(p.scale), a.d_q.data,
                s.batch * a.d_q.batch + (s.q_begin + block.first + r) * a.d_q.token + block.head * a.d_q.head,
                a.d_q.dim);
    }
  }
}

}  // namespace lazy::kernels::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace lazy::kernels::cpu {

HWY_EXPORT(backward_block);

void backward_block(const Problem& p, const Backward<float>& a, const RowBlock& block, const HeadParameters& head,
                    const PackedKeys& packed, const GradientSlab& slab, float* scratch) {
  HWY_DYNAMIC_DISPATCH(backward_block)(p, a, block, head, packed, slab, scratch);
}

size_t backward_scratch(const Problem& p, int64_t rows, int64_t columns) {
  return rows * (2 * round_up(p.head_dim, 16) + round_up(p.value_dim, 16) + 2 * strip_stride(columns)) +
         (p.softcap > 0 ? strip_stride(columns) : 0);
}

}  // namespace lazy::kernels::cpu
#endif
