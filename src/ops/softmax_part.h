// The backward pass of keys that are a part of their rows' softmax: what a GPU's library has for it.
#pragma once
#include "ops/attention_arguments.h"

namespace lazy::ops {

// After check_backward, for the normalizer softmax_sink, whose rows have mass beside the keys; the sink is not read.
// out and lse are those of the whole softmax. Returns false, and has computed nothing, where the kernels would take
// what the rows have from the keys that they see.
using SoftmaxPartBackward = bool (*)(const AttentionArguments& a, const at::Tensor& d_out, const at::Tensor& out,
                                     const at::Tensor& lse, AttentionGradients& g);
SoftmaxPartBackward softmax_part_backward();                 // null until the CUDA library is loaded
void set_softmax_part_backward(SoftmaxPartBackward kernel);  // called by the library

}  // namespace lazy::ops
