// Matrix products of linear layers on a CPU.
#pragma once
#include "ops/tensor.h"

namespace lazy::ops {

// a (M, K), b (N, K), any strides -> a b^T (M, N), without a gradient. On a CPU, oneDNN computes fp32 products with M
// of at least 64: it generates its kernels for the processor, while MKL uses generic kernels on processors that are not
// from Intel (docs/dev/kernels.md). On processors without bf16 instructions, bf16 products are computed by oneDNN in
// fp32 too; b is converted in blocks of 32 MB. All other products use at::mm.
at::Tensor dense_product(const at::Tensor& a, const at::Tensor& b);
// sum (M, N) += a b^T. Products that use at::addmm_ need no separate pass for the addition.
void add_dense_product(at::Tensor& sum, const at::Tensor& a, const at::Tensor& b);

}  // namespace lazy::ops
