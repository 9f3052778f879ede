// lazy::rms_norm computes y = x / sqrt(mean(x^2) + eps) * weight over the last dimension. Sums are fp32.
#pragma once
#include <cstdint>
#include <tuple>

#include "ops/optional_tensor.h"

namespace lazy::ops {

// x (..., dim) fp32 or bf16, on a GPU also fp16; weight (dim), fp32 or in the dtype of x. Returns y with the shape and
// dtype of x. Differentiable in x and weight.
at::Tensor rms_norm(const at::Tensor& x, const at::Tensor& weight, double eps);

// Residual addition fused with the next norm, in one pass over memory: sum = x + residual (rounded to the dtype of x),
// y = rms_norm(sum). Returns (y, sum), both with the shape and dtype of x. Differentiable in x, residual and weight,
// through both results.
std::tuple<at::Tensor, at::Tensor> add_rms_norm(const at::Tensor& x, const at::Tensor& residual,
                                                const at::Tensor& weight, double eps);

// Only the CPU and CUDA implementations use the following declarations. The check functions throw "lazy::rms_norm:
// expected ..., received ..." for invalid arguments, without reading tensor data.
void check_rms_norm(const at::Tensor& x, const at::Tensor& weight);
void check_add_rms_norm(const at::Tensor& x, const at::Tensor& residual, const at::Tensor& weight);
void check_rms_norm_backward(const at::Tensor& d_y, const at::Tensor& x, const at::Tensor& weight,
                             const OptionalTensor& d_sum);
int64_t row_count(const at::Tensor& x);

}  // namespace lazy::ops
