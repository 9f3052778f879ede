// Conversion of rows of any element type and stride to and from contiguous fp32.
#if defined(LAZY_ATTENTION_CPU_CONVERT_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef LAZY_ATTENTION_CPU_CONVERT_INL_H_
#undef LAZY_ATTENTION_CPU_CONVERT_INL_H_
#else
#define LAZY_ATTENTION_CPU_CONVERT_INL_H_
#endif

#include <cstdlib>

#include "attention/cpu/convert.h"
#include "hwy/highway.h"
#include "lazy/attention.h"

HWY_BEFORE_NAMESPACE();
namespace lazy::kernels::cpu::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

// Computes dst[i] = scale * src[i * stride] for i < n.
inline void load_f32(const float* src, int64_t stride, size_t n, float scale, float* HWY_RESTRICT dst) {
  const hn::ScalableTag<float> f;
  size_t i = 0;
  if (stride == 1) {
    for (; i + hn::Lanes(f) <= n; i += hn::Lanes(f)) {
      hn::StoreU(hn::Mul(hn::LoadU(f, src + i), hn::Set(f, scale)), f, dst + i);
    }
  }
  for (; i < n; ++i) dst[i] = scale * src[static_cast<int64_t>(i) * stride];
}

inline void load_bf16(const uint16_t* src, int64_t stride, size_t n, float scale, float* HWY_RESTRICT dst) {
  const hn::ScalableTag<float> f;
  const hn::RebindToUnsigned<decltype(f)> u32;
  const hn::Rebind<uint16_t, decltype(f)> u16;
  size_t i = 0;
  if (stride == 1) {
    for (; i + hn::Lanes(f) <= n; i += hn::Lanes(f)) {
      const auto wide = hn::ShiftLeft<16>(hn::PromoteTo(u32, hn::LoadU(u16, src + i)));
      hn::StoreU(hn::Mul(hn::BitCast(f, wide), hn::Set(f, scale)), f, dst + i);
    }
  }
  for (; i < n; ++i) dst[i] = scale * f32_from_bf16(src[static_cast<int64_t>(i) * stride]);
}

inline void store_bf16(const float* HWY_RESTRICT src, size_t n, float scale, uint16_t* dst, int64_t stride) {
  const hn::ScalableTag<float> f;
  const hn::RebindToUnsigned<decltype(f)> u32;
  const hn::Rebind<uint16_t, decltype(f)> u16;
  const hn::RebindToSigned<decltype(f)> i32;
  size_t i = 0;
  if (stride == 1) {
    for (; i + hn::Lanes(f) <= n; i += hn::Lanes(f)) {
      const auto x = hn::Mul(hn::LoadU(f, src + i), hn::Set(f, scale));
      const auto bits = hn::BitCast(u32, x);
      const auto odd = hn::And(hn::ShiftRight<16>(bits), hn::Set(u32, 1));
      const auto rounded = hn::ShiftRight<16>(hn::Add(bits, hn::Add(odd, hn::Set(u32, 0x7FFF))));
      const auto result = hn::IfThenElse(hn::RebindMask(u32, hn::IsNaN(x)), hn::Set(u32, 0x7FC0), rounded);
      hn::StoreU(hn::DemoteTo(u16, hn::BitCast(i32, result)), u16, dst + i);
    }
  }
  for (; i < n; ++i) dst[static_cast<int64_t>(i) * stride] = bf16_from_f32(scale * src[i]);
}

inline void load_row(DType dtype, const void* src, int64_t offset, int64_t stride, size_t n, float scale,
                     float* HWY_RESTRICT dst) {
  switch (dtype) {
    case DType::f32:
      return load_f32(static_cast<const float*>(src) + offset, stride, n, scale, dst);
    case DType::bf16:
      return load_bf16(static_cast<const uint16_t*>(src) + offset, stride, n, scale, dst);
    case DType::f16: {
      const uint16_t* from = static_cast<const uint16_t*>(src) + offset;
      for (size_t i = 0; i < n; ++i) dst[i] = scale * f32_from_f16(from[static_cast<int64_t>(i) * stride]);
      return;
    }
    case DType::f64:
      break;  // not reached: unmet_condition rejects f64
  }
  std::abort();
}

inline void store_row(DType dtype, const float* HWY_RESTRICT src, size_t n, float scale, void* dst, int64_t offset,
                      int64_t stride) {
  switch (dtype) {
    case DType::f32: {
      float* to = static_cast<float*>(dst) + offset;
      for (size_t i = 0; i < n; ++i) to[static_cast<int64_t>(i) * stride] = scale * src[i];
      return;
    }
    case DType::bf16:
      return store_bf16(src, n, scale, static_cast<uint16_t*>(dst) + offset, stride);
    case DType::f16: {
      uint16_t* to = static_cast<uint16_t*>(dst) + offset;
      for (size_t i = 0; i < n; ++i) to[static_cast<int64_t>(i) * stride] = f16_from_f32(scale * src[i]);
      return;
    }
    case DType::f64:
      break;
  }
  std::abort();
}

}  // namespace lazy::kernels::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif
