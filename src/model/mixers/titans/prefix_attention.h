// Causal attention within a window whose queries also see a few tokens before the text, however far behind: the sliding
// window attention with a prefix of Titans (arXiv 2501.00663, MAG).
#pragma once
#include <ATen/core/Tensor.h>

#include "ops/attention.h"

namespace lazy {

// One softmax over the prefix and the window's keys. q, k, v as for ops::attention, with batch axis or packed (then
// options.cu_seqlens_q); options: causal softmax. prefix_q like q: what the prefix is asked with, prefix_k and prefix_v
// (prefix, heads, head_dim). The prefix is few tokens: its scores are formed. Differentiable in all six.
at::Tensor prefix_attention(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, const at::Tensor& prefix_q,
                            const at::Tensor& prefix_k, const at::Tensor& prefix_v,
                            const ops::AttentionOptions& options);

}  // namespace lazy
