// The language-model head: logits, cross-entropy and per-token log-likelihoods, in slices of rows, so that the
// (rows, vocabulary) matrix never exists whole.
#pragma once
#include <ATen/core/Tensor.h>

#include <utility>

namespace lazy {

constexpr int64_t kIgnoredLabel = -100;

// hidden (N, d) in the computing precision; W (V, d) in the same precision; weight (V, d) is the fp32 leaf that W was
// cast from and that receives the gradient; labels (N) int64.
// Mean over labels != -100 of -log softmax(hidden W^T)[label], a scalar in fp32; 0 when every label is ignored.
// The gradients are computed in the forward pass, while a slice's logits are at hand.
at::Tensor linear_cross_entropy(const at::Tensor& hidden, const at::Tensor& W, const at::Tensor& weight,
                                const at::Tensor& labels);

// (N) fp32 log-probability of each label, 0 where ignored, and (N) bool: the label had the largest logit (the first of
// equals). No gradient.
std::pair<at::Tensor, at::Tensor> linear_log_likelihood(const at::Tensor& hidden, const at::Tensor& W,
                                                        const at::Tensor& labels);

}  // namespace lazy
