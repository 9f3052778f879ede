// The backward pass of lazy::attention on NVIDIA GPUs, into memory of the caller.
#pragma once
#include "ops/attention_arguments.h"

namespace lazy::ops {

// By position and pair (n, n + head_dim / 2), on the GPU; null: none.
struct Rotation {
  const float *cos = nullptr, *sin = nullptr;
};
// Whether the backward pass takes a rotation.
bool rotates_back(const AttentionArguments& a);

// After check_backward. g: shapes as empty_gradients makes them, any memory. With a rotation d_q and d_k are those of
// q and k before it. of_part: see CudaLibrary; otherwise true is returned.
bool run_attention_backward(const AttentionArguments& a, const at::Tensor& d_out, const at::Tensor& out,
                            const at::Tensor& lse, const OptionalTensor& alive_sum, const Rotation& rotation,
                            AttentionGradients& g, bool of_part = false);

}  // namespace lazy::ops
