// lazy::rms_norm: y = x / sqrt(mean(x^2) + eps) * weight over the last dimension, sums in fp32.
#pragma once
#include <ATen/core/Tensor.h>

#include <tuple>

namespace lazy::ops {

// x (..., dim) fp32 or bf16, on a GPU fp16 too; weight (dim), fp32 or x's type. Returns y like x. Differentiable in x
// and weight.
at::Tensor rms_norm(const at::Tensor& x, const at::Tensor& weight, double eps);

// The pre-norm residual stream in one pass over memory: sum = x + residual (rounded to x's type), y = rms_norm(sum).
// Returns (y, sum), both like x. Differentiable in x, residual and weight, through both results.
std::tuple<at::Tensor, at::Tensor> add_rms_norm(const at::Tensor& x, const at::Tensor& residual,
                                                const at::Tensor& weight, double eps);

}  // namespace lazy::ops
