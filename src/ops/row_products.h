// x W^T on a CPU, by the faster of LibTorch's two libraries.
#pragma once
#include <ATen/core/Tensor.h>

namespace lazy::ops {

// x (rows, in), weight (out, in), fp32 -> (rows, out); no gradient. oneDNN where LibTorch has it and rows are not few,
// else at::mm.
at::Tensor row_products(const at::Tensor& x, const at::Tensor& weight);

}  // namespace lazy::ops
