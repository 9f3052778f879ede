// Checks of the short convolution's arguments, without looking at data, for every device.
#pragma once
#include "ops/fused.h"
#include "ops/short_convolution.h"

namespace lazy::ops {

inline void check_short_convolution(const at::Tensor& x, const at::Tensor& weight, const OptionalTensor& bias,
                                    const OptionalTensor& past, const OptionalTensor& cu_seqlens) {
  constexpr const char* kName = "short_convolution";
  LAZY_CHECK(kName, x.dim() == 3 && (x.scalar_type() == at::kFloat || x.scalar_type() == at::kBFloat16 || x.scalar_type() == at::kHalf),
             "x (batch, length, channels) of float32, bfloat16 or float16, received ", x.sym_sizes(), " of ", x.scalar_type());
  LAZY_CHECK(kName, weight.dim() == 3 && weight.sym_size(0) == x.sym_size(2) && weight.sym_size(1) == 1 && weight.sym_size(2) >= 1 &&
                        weight.sym_size(2) <= kMostTaps && weight.is_floating_point(),
             "weight (", x.sym_size(2), ", 1, taps) of 1 to ", kMostTaps, " taps, received ", weight.sym_sizes(), " of ",
             weight.scalar_type());
  check_device(kName, "weight", weight, x);
  if (given(bias)) {
    LAZY_CHECK(kName, bias->dim() == 1 && bias->sym_size(0) == x.sym_size(2) && bias->is_floating_point(), "bias (",
               x.sym_size(2), "), received ", bias->sym_sizes(), " of ", bias->scalar_type());
    check_device(kName, "bias", *bias, x);
  }
  if (given(past)) {
    LAZY_CHECK(kName, past->dim() == 3 && past->sym_size(0) == x.sym_size(0) && past->sym_size(1) == weight.sym_size(2) - 1 &&
                          past->sym_size(2) == x.sym_size(2) && past->scalar_type() == x.scalar_type(),
               "past (", x.sym_size(0), ", ", weight.sym_size(2) - 1, ", ", x.sym_size(2), ") of ", x.scalar_type(),
               ", received ", past->sym_sizes(), " of ", past->scalar_type());
    check_device(kName, "past", *past, x);
  }
  if (given(cu_seqlens)) {
    LAZY_CHECK(kName, cu_seqlens->dim() == 1 && cu_seqlens->scalar_type() == at::kInt && cu_seqlens->sym_size(0) >= 2 &&
                          x.sym_size(0) == 1 && !given(past),
               "cu_seqlens (documents + 1) int32 with a batch of 1 and no past, received ", cu_seqlens->sym_sizes(), " of ",
               cu_seqlens->scalar_type(), " and a batch of ", x.sym_size(0));
    check_device(kName, "cu_seqlens", *cu_seqlens, x);
  }
}

// d_x; of d_weight and d_bias in one, (taps + 1, channels) in fp32, what each tensor gets.
struct ShortConvolutionGradients {
  at::Tensor d_x, d_weight, d_bias;
};
inline ShortConvolutionGradients split_gradients(const at::Tensor& d_x, const at::Tensor& sums, const at::Tensor& weight,
                                                 const OptionalTensor& bias) {
  const int64_t taps = weight.size(2);
  const at::ScalarType type = given(bias) ? bias->scalar_type() : at::kFloat;
  return {d_x, sums.narrow(0, 0, taps).t().unsqueeze(1).to(weight.scalar_type()).contiguous(), sums.select(0, taps).to(type).clone()};
}

}  // namespace lazy::ops
