// The backward pass of lazy::attention on NVIDIA GPUs, written into gradients that the caller allocates.
#pragma once
#include "ops/attention_arguments.h"

namespace lazy::ops {

// RoPE tables on the GPU, indexed by position and by the pair n of dimensions (n, n + head_dim / 2). The pointers are
// null if no rotation is applied.
struct Rotation {
  const float *cos = nullptr, *sin = nullptr;
};
// Whether the backward kernels can apply the inverse RoPE rotation to the gradients of q and k.
bool rotates_back(const AttentionArguments& a);

// Runs the backward pass. Requires check_backward. The caller allocates `g` with the shapes of empty_gradients. If
// `rotation` is given, d_q and d_k are the gradients with respect to q and k before the rotation. of_part: a.k and a.v
// contain only a part of the keys and values over which the softmax was computed (see
// CudaLibrary::softmax_part_backward). Returns false only with `of_part`, if the kernels do not support it.
bool run_attention_backward(const AttentionArguments& a, const at::Tensor& d_out, const at::Tensor& out,
                            const at::Tensor& lse, const OptionalTensor& alive_sum, const Rotation& rotation,
                            AttentionGradients& g, bool of_part = false);

}  // namespace lazy::ops
