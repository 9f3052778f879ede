#include "attention/cpu/targets.h"
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "ops/skinny_gemm_kernel.cc"
#include "hwy/foreach_target.h"
// These headers must come after foreach_target.h.
#include <cstring>

#include "attention/cpu/vector-inl.h"
#include "hwy/cache_control.h"
#include "ops/skinny_gemm_kernel.h"

HWY_BEFORE_NAMESPACE();
namespace lazy::ops::skinny::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;
namespace cpu = kernels::cpu::HWY_NAMESPACE;
using cpu::F;
using cpu::kLanes;
using cpu::VF;

struct Bf16 {
  uint16_t bits;
};

HWY_INLINE VF widen(const float* w) { return hn::LoadU(F(), w); }
HWY_INLINE VF widen(const Bf16* w) {
  const hn::RebindToUnsigned<F> u32;
  const hn::Rebind<uint16_t, F> u16;
  return hn::BitCast(F(), hn::ShiftLeft<16>(hn::PromoteTo(u32, hn::LoadU(u16, reinterpret_cast<const uint16_t*>(w)))));
}
HWY_INLINE VF widen(const int8_t* w) {
  const hn::RebindToSigned<F> i32;
  const hn::Rebind<int8_t, F> i8;
  return hn::ConvertTo(F(), hn::PromoteTo(i32, hn::LoadU(i8, w)));
}
HWY_INLINE float widen_one(float w) { return w; }
HWY_INLINE float widen_one(Bf16 w) {
  const uint32_t bits = uint32_t{w.bits} << 16;
  float x;
  std::memcpy(&x, &bits, 4);
  return x;
}
HWY_INLINE float widen_one(int8_t w) { return static_cast<float>(w); }

// Computes N columns of R rows of the result. Each weight is loaded once and used for all R rows.
template <int R, int N, class W>
HWY_INLINE void block(const float* x, const W* weights, const float* scale, int64_t in, float* y, int64_t out,
                      int64_t column) {
  VF sums[R][N];
  for (auto& row : sums) {
    for (VF& sum : row) sum = hn::Zero(F());
  }
  int64_t k = 0;
  for (; k + static_cast<int64_t>(kLanes) <= in; k += static_cast<int64_t>(kLanes)) {
    VF w[N];
    for (int n = 0; n < N; ++n) {
      w[n] = widen(weights + (column + n) * in + k);
      // The hardware prefetcher stops at page boundaries, and a row of weights is about one page long.
      hwy::Prefetch(weights + (column + n + N) * in + k);
    }
    for (int r = 0; r < R; ++r) {
      const VF v = hn::LoadU(F(), x + r * in + k);
      for (int n = 0; n < N; ++n) sums[r][n] = hn::MulAdd(w[n], v, sums[r][n]);
    }
  }
  for (int r = 0; r < R; ++r) {
    for (int n = 0; n < N; ++n) {
      float sum = cpu::sum_lanes(sums[r][n]);
      for (int64_t rest = k; rest < in; ++rest) sum += widen_one(weights[(column + n) * in + rest]) * x[r * in + rest];
      y[r * out + column + n] = scale ? scale[column + n] * sum : sum;
    }
  }
}

template <int N, class W>
void columns(const float* x, int64_t rows, const W* weights, const float* scale, int64_t in, float* y, int64_t out,
             int64_t column) {
  int64_t r = 0;
  for (; r + 4 <= rows; r += 4) block<4, N>(x + r * in, weights, scale, in, y + r * out, out, column);
  for (; r < rows; ++r) block<1, N>(x + r * in, weights, scale, in, y + r * out, out, column);
}

template <class W>
void all_columns(const float* x, int64_t rows, const void* W_data, const float* scale, int64_t in, float* y,
                 int64_t out, int64_t begin, int64_t end) {
  const auto* weights = static_cast<const W*>(W_data);
  int64_t column = begin;
  for (; column + 4 <= end; column += 4) columns<4>(x, rows, weights, scale, in, y, out, column);
  for (; column < end; ++column) columns<1>(x, rows, weights, scale, in, y, out, column);
}

void product(const float* x, int64_t rows, WeightType type, const void* W, const float* scale, int64_t in, float* y,
             int64_t out, int64_t begin, int64_t end) {
  switch (type) {
    case WeightType::f32:
      return all_columns<float>(x, rows, W, nullptr, in, y, out, begin, end);
    case WeightType::bf16:
      return all_columns<Bf16>(x, rows, W, nullptr, in, y, out, begin, end);
    case WeightType::int8:
      return all_columns<int8_t>(x, rows, W, scale, in, y, out, begin, end);
  }
}

}  // namespace lazy::ops::skinny::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace lazy::ops::skinny {

HWY_EXPORT(product);

void product(const float* x, int64_t rows, WeightType type, const void* W, const float* scale, int64_t in, float* y,
             int64_t out, int64_t begin, int64_t end) {
  HWY_DYNAMIC_DISPATCH(product)(x, rows, type, W, scale, in, y, out, begin, end);
}

}  // namespace lazy::ops::skinny
#endif
