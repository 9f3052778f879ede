// Matrix products of linear layers on a CPU.
#pragma once
#include "ops/tensor.h"

namespace lazy::ops {

// a (M, K), b (N, K), any strides -> a b^T (M, N), without a gradient. oneDNN computes fp32 products with M of 64 or
// more on a CPU: its kernels are compiled for the processor, while MKL takes generic ones on processors of other makers
// (docs/kernels.md). On processors without instructions for bf16 it computes such products of bf16 too, in fp32, 32 MB
// of b at a time. Everything else is at::mm.
at::Tensor dense_product(const at::Tensor& a, const at::Tensor& b);
// sum (M, N) += a b^T; where at::addmm_ serves, without a pass of its own.
void add_dense_product(at::Tensor& sum, const at::Tensor& a, const at::Tensor& b);

}  // namespace lazy::ops
