// Converts keys and values to fp32 and copies them to the layouts that the matrix products need.
#include "attention/cpu/targets.h"
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "attention/cpu/pack.cc"
#include "hwy/foreach_target.h"
// These headers must be included after foreach_target.h.
#include "attention/cpu/block.h"
#include "attention/cpu/convert-inl.h"
#include "attention/cpu/products-inl.h"

HWY_BEFORE_NAMESPACE();
namespace lazy::kernels::cpu::HWY_NAMESPACE {

// Alignment, in bits, of rows that are allocated on the stack. It is given explicitly because GCC's AddressSanitizer
// aligns a plain alloca to only 32 bytes, while the vector stores need 64 bytes.
constexpr size_t kStackBits = 512;

// Transposes `count` rows of keys to one panel (dim, kPanel). Columns with an index of `count` or above become zero.
void transpose_panel(const float* rows, size_t stride, size_t count, size_t dim, float* HWY_RESTRICT panel) {
  for (size_t d = 0; d < dim; ++d) {
    for (size_t j = 0; j < count; ++j) panel[d * kPanel + j] = rows[j * stride + d];
    for (size_t j = count; j < kPanel; ++j) panel[d * kPanel + j] = 0;
  }
}

// Copies the rows of a panel's keys to the sliced layout PackedKeys::k_rows or v_rows, with kSlice dimensions per
// slice.
void slice_rows(const float* rows, size_t stride, size_t count, size_t first_key, size_t keys, float* HWY_RESTRICT to) {
  for (size_t d = 0; d < stride; d += kSlice) {
    const size_t width = std::min(kSlice, stride - d);
    float* slice = to + d * keys + first_key * width;
    for (size_t n = 0; n < count; ++n) std::copy_n(rows + n * stride + d, width, slice + n * width);
  }
}

void pack_one(DType dtype, const ConstView& view, const Sequence& s, int64_t kv_head, int64_t begin, int64_t end,
              size_t dim, float* rows, float* panels, size_t stride, size_t keys) {
  float* row = static_cast<float*>(__builtin_alloca_with_align(kPanel * stride * sizeof(float), kStackBits));
  for (int64_t j = begin; j < end; j += kPanel) {
    const size_t count = static_cast<size_t>(std::min<int64_t>(kPanel, end - j));
    for (size_t n = 0; n < count; ++n) {
      const int64_t offset = s.batch * view.batch + (s.k_begin + j + n) * view.token + kv_head * view.head;
      load_row(dtype, view.data, offset, view.dim, dim, 1.0f, row + n * stride);
      for (size_t d = dim; d < stride; ++d) row[n * stride + d] = 0;
    }
    if (rows) slice_rows(row, stride, count, j, keys, rows);
    if (panels) transpose_panel(row, stride, count, dim, panels + j * dim);
  }
}

void pack_keys(const Problem& p, const ConstView& k, const ConstView& v, const Sequence& s, int64_t kv_head,
               int64_t begin, int64_t end, const PackedKeys& packed) {
  pack_one(p.dtype, k, s, kv_head, begin, end, p.head_dim, packed.k_rows, packed.k_panels, packed.k_stride,
           packed.keys);
  pack_one(p.dtype, v, s, kv_head, begin, end, p.value_dim, packed.v_rows, packed.v_panels, packed.v_stride,
           packed.keys);
}

void store_sum(DType dtype, const float* const* slabs, size_t count, size_t stride, int64_t begin, int64_t end,
               size_t dim, float scale, const View& out, int64_t batch, int64_t first_token, int64_t head) {
  const F f;
  float* row = static_cast<float*>(__builtin_alloca_with_align(stride * sizeof(float), kStackBits));
  for (int64_t j = begin; j < end; ++j) {
    for (size_t d = 0; d < stride; d += kLanes) {
      VF sum = hn::LoadU(f, slabs[0] + j * stride + d);
      for (size_t n = 1; n < count; ++n) sum = hn::Add(sum, hn::LoadU(f, slabs[n] + j * stride + d));
      hn::StoreU(sum, f, row + d);
    }
    store_row(dtype, row, dim, scale, out.data, batch * out.batch + (first_token + j) * out.token + head * out.head,
              out.dim);
  }
}

}  // namespace lazy::kernels::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace lazy::kernels::cpu {

HWY_EXPORT(pack_keys);
HWY_EXPORT(store_sum);

void pack_keys(const Problem& p, const ConstView& k, const ConstView& v, const Sequence& s, int64_t kv_head,
               int64_t begin, int64_t end, const PackedKeys& packed) {
  HWY_DYNAMIC_DISPATCH(pack_keys)(p, k, v, s, kv_head, begin, end, packed);
}

void store_sum(DType dtype, const float* const* slabs, size_t count, size_t stride, int64_t begin, int64_t end,
               size_t dim, float scale, const View& out, int64_t batch, int64_t first_token, int64_t head) {
  HWY_DYNAMIC_DISPATCH(store_sum)(dtype, slabs, count, stride, begin, end, dim, scale, out, batch, first_token, head);
}

}  // namespace lazy::kernels::cpu
#endif
