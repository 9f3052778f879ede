// fp32 vectors for the instruction set for which this code is compiled: types, reductions, exp and tanh.
#if defined(LAZY_ATTENTION_CPU_VECTOR_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef LAZY_ATTENTION_CPU_VECTOR_INL_H_
#undef LAZY_ATTENTION_CPU_VECTOR_INL_H_
#else
#define LAZY_ATTENTION_CPU_VECTOR_INL_H_
#endif

#include <cstddef>

#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace lazy::kernels::cpu::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

using F = hn::ScalableTag<float>;
using VF = hn::Vec<F>;
constexpr size_t kLanes = HWY_LANES(float);

// Reductions of a vector to a scalar. Highway has these functions only from version 1.1 on.
HWY_INLINE float sum_lanes(VF v) { return hn::GetLane(hn::SumOfLanes(F(), v)); }
HWY_INLINE float max_lanes(VF v) { return hn::GetLane(hn::MaxOfLanes(F(), v)); }

// exp for arguments up to 88, with an error of up to 1 ulp: 2^n times a polynomial on [-ln2/2, ln2/2]. exp(0) is
// exactly 1. For x below -87.3 (where fp32 becomes subnormal), including -inf, the result is 0. NaN stays NaN.
template <class D, class V = hn::Vec<D>>
HWY_INLINE V exp_nonpositive(const D f, const V x) {
  const hn::RebindToSigned<D> i32;
  // Adding 1.5 * 2^23 rounds to the nearest integer and leaves the integer in the low bits.
  const V magic = hn::Set(f, 12582912.0f);
  const V shifted = hn::MulAdd(x, hn::Set(f, 1.44269504088896341f), magic);
  const V n = hn::Sub(shifted, magic);
  V r = hn::NegMulAdd(n, hn::Set(f, 0.693145751953125f), x);
  r = hn::NegMulAdd(n, hn::Set(f, 1.42860682030941723e-6f), r);
  V y = hn::MulAdd(hn::Set(f, 1.9875691500e-4f), r, hn::Set(f, 1.3981999507e-3f));
  y = hn::MulAdd(y, r, hn::Set(f, 8.3334519073e-3f));
  y = hn::MulAdd(y, r, hn::Set(f, 4.1665795894e-2f));
  y = hn::MulAdd(y, r, hn::Set(f, 1.6666665459e-1f));
  y = hn::MulAdd(y, r, hn::Set(f, 5.0000001201e-1f));
  y = hn::Add(hn::MulAdd(y, hn::Mul(r, r), r), hn::Set(f, 1.0f));
  // Multiply by 2^n by adding n to the exponent bits.
  const auto scaled = hn::BitCast(f, hn::Add(hn::BitCast(i32, y), hn::ShiftLeft<23>(hn::BitCast(i32, shifted))));
  return hn::IfThenElse(hn::IsNaN(x), x, hn::IfThenZeroElse(hn::Lt(x, hn::Set(f, -87.3f)), scaled));
}

// tanh(x) and its derivative 1 - tanh(x)^2, both with a small relative error for every x. NaN stays NaN.
template <class V>
struct TanhAndSlope {
  V value, slope;
};
template <class D, class V = hn::Vec<D>>
HWY_INLINE TanhAndSlope<V> tanh_and_slope(const D f, const V x) {
  const V one = hn::Set(f, 1.0f), magnitude = hn::Abs(x);
  const V e = exp_nonpositive(f, hn::Mul(magnitude, hn::Set(f, -2.0f)));
  const V share = hn::Div(hn::Add(e, e), hn::Add(one, e));  // share = 1 - tanh|x|
  // Near zero, computing 1 - share would suffer from cancellation, so an odd polynomial is used.
  const V z = hn::Mul(x, x);
  V y = hn::MulAdd(hn::Set(f, -5.70498872745e-3f), z, hn::Set(f, 2.06390887954e-2f));
  y = hn::MulAdd(y, z, hn::Set(f, -5.37397155531e-2f));
  y = hn::MulAdd(y, z, hn::Set(f, 1.33314422036e-1f));
  y = hn::MulAdd(y, z, hn::Set(f, -3.33332819422e-1f));
  y = hn::MulAdd(hn::Mul(y, z), x, x);
  const V value = hn::IfThenElse(hn::Lt(magnitude, hn::Set(f, 0.625f)), y, hn::CopySign(hn::Sub(one, share), x));
  return {value, hn::Mul(share, hn::Sub(hn::Set(f, 2.0f), share))};
}

}  // namespace lazy::kernels::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif
