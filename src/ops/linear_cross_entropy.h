// lazy::linear_cross_entropy: the output projection and the cross-entropy in one, a chunk of tokens at a time: the
// logits of all positions never exist at once.
#pragma once
#include <ATen/core/Tensor.h>

#include <cstdint>
#include <tuple>

namespace lazy::ops {

inline constexpr int64_t kLogitsBytesCuda = int64_t{512} << 20;  // of fp32 logits that exist at once on a GPU

// hidden (tokens, dim) fp32 or bf16, on a GPU fp16 too; weight (vocab, dim) of hidden's type (under autocast both are
// cast to its type); labels (tokens) int64, ignore_index: not counted. Returns
//   loss      scalar fp32: mean over counted tokens of -log softmax(hidden weight^T)[label], in nats; NaN if none
//   counts log_prob  (tokens) fp32: log-probability of the label, 0 where ignored; not differentiable correct (tokens)
//   bool: the label has the largest logit; false where ignored
// A label outside the vocabulary is an error; on a GPU nobody waits to look at labels, so there the error is CUDA's,
// with a message that names the labels expected, and arrives when the host next waits for the GPU. Differentiable in
// hidden and weight through the loss. When a gradient will be needed it is computed along with the loss, while a
// chunk's logits are at hand, so the backward pass only scales it.
std::tuple<at::Tensor, at::Tensor, at::Tensor> linear_cross_entropy(const at::Tensor& hidden, const at::Tensor& weight,
                                                                    const at::Tensor& labels,
                                                                    int64_t ignore_index = -100);

}  // namespace lazy::ops
