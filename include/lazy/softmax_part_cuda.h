// Attention on NVIDIA GPUs over a part of a softmax's keys.
#pragma once
#include "lazy/attention_cuda.h"

namespace lazy::kernels {

// Whether backward_cuda takes what a row's weights have in common from out and lse, and not from the keys: with
// softmax_sink and without d_sink, the keys may then be a part of those that out and lse are of.
bool reads_rows_from_out_cuda(const Problem& problem, const Backward<float>& arguments, const CudaCall& call);

}  // namespace lazy::kernels
