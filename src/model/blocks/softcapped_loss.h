// Logits with a soft cap, cap tanh(z / cap), and the cross-entropy of such logits (Gemma 2).
#pragma once
#include <ATen/core/Tensor.h>

#include <tuple>

namespace lazy {

// Returns cap tanh(logits / cap), or the logits themselves if cap is 0.
at::Tensor softcapped(const at::Tensor& logits, double cap);

// Returns the results of ops::linear_cross_entropy with ignore_index -100 for the logits softcapped(hidden weight^T,
// cap). At most one chunk of tokens has its logits in memory at a time, in fp32 (fp64 for fp64 inputs).
std::tuple<at::Tensor, at::Tensor, at::Tensor> softcapped_cross_entropy(const at::Tensor& hidden,
                                                                        const at::Tensor& weight,
                                                                        const at::Tensor& labels, double cap);

}  // namespace lazy
