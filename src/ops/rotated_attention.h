// The backward pass of attention whose queries and keys were rotated: what a GPU's library has for it.
#pragma once
#include "ops/attention_arguments.h"
#include "ops/rope.h"

namespace lazy::ops {

// After check_backward, q and k rotated. g.q and g.k: gradients before the rotation, with a stride of tokens; as
// rope_into wants them.
using RotatedBackward = void (*)(const AttentionArguments& a, const at::Tensor& d_out, const at::Tensor& out,
                                 const at::Tensor& lse, const OptionalTensor& alive_sum, const RopeArguments& rope,
                                 AttentionGradients& g);
RotatedBackward rotated_backward();                 // null until the CUDA library is loaded
void set_rotated_backward(RotatedBackward kernel);  // called by the library

}  // namespace lazy::ops
