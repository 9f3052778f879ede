// Matrix products of linear layers on a CPU.
#pragma once
#include "ops/tensor.h"

namespace lazy::ops {

// Returns a b^T (M, N) for a (M, K) and b (N, K) with any strides. No gradient. On a CPU, oneDNN computes fp32 products
// with M of at least 64: it generates its kernels for the processor, whereas MKL uses generic kernels on processors
// that are not from Intel (docs/dev/kernels.md). On processors without bf16 instructions, oneDNN also computes bf16
// products, in fp32; b is converted in blocks of 32 MB. All other products use at::mm.
at::Tensor dense_product(const at::Tensor& a, const at::Tensor& b);
// Computes sum += a b^T with sum (M, N). Products that do not use oneDNN call at::addmm_, which needs no separate pass
// for the addition.
void add_dense_product(at::Tensor& sum, const at::Tensor& a, const at::Tensor& b);

}  // namespace lazy::ops
