// Logits with a soft cap, cap tanh(z / cap), and the cross-entropy of such logits (Gemma 2).
#pragma once
#include <ATen/core/Tensor.h>

#include <tuple>

namespace lazy {

// cap tanh(logits / cap); the logits themselves if cap is 0.
at::Tensor softcapped(const at::Tensor& logits, double cap);

// The results of ops::linear_cross_entropy with ignore_index -100 for the logits softcapped(hidden weight^T, cap). Only
// the logits of one chunk of tokens are in memory at a time, in fp32 (fp64 for fp64 inputs).
std::tuple<at::Tensor, at::Tensor, at::Tensor> softcapped_cross_entropy(const at::Tensor& hidden,
                                                                        const at::Tensor& weight,
                                                                        const at::Tensor& labels, double cap);

}  // namespace lazy
