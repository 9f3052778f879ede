// Root-mean-square norm (Zhang and Sennrich 2019): y = x / sqrt(mean(x^2) + eps) * weight.
#pragma once
#include <ATen/core/Tensor.h>

namespace lazy {

// x (..., d) in the computing precision, weight (d) fp32. Computed in fp32, returned in x's precision.
at::Tensor rms_norm(const at::Tensor& x, const at::Tensor& weight, double eps);

}  // namespace lazy
