// lazy::linear_cross_entropy: output projection and cross-entropy fused, one chunk of tokens at a time, so that the
// logits of all positions never exist at once.
#pragma once
#include <cstdint>
#include <tuple>

#include "ops/tensor.h"

namespace lazy::ops {

inline constexpr int64_t kLogitsBytesCuda = int64_t{512} << 20;  // of a chunk's fp32 logits on a GPU

// hidden (tokens, dim) fp32 or bf16, on a GPU fp16 too; weight (vocab, dim) of hidden's type (under autocast both are
// cast to its type); labels (tokens) int64, tokens with ignore_index are not counted. Returns
//   loss      scalar fp32: mean of -log softmax(hidden weight^T)[label] in nats over the counted tokens; NaN if none
//   log_prob  (tokens) fp32: log-probability of the label, 0 where ignored; not differentiable
//   correct   (tokens) bool: the label has the largest logit; false where ignored
// A label outside the vocabulary is an error; on a GPU it is a device-side assertion that names the expected labels and
// is reported at the next synchronization. Differentiable in hidden and weight through the loss. If a gradient is
// needed, the forward pass computes it with each chunk's logits, and the backward pass only scales it.
std::tuple<at::Tensor, at::Tensor, at::Tensor> linear_cross_entropy(const at::Tensor& hidden, const at::Tensor& weight,
                                                                    const at::Tensor& labels,
                                                                    int64_t ignore_index = -100);

// For the CPU and CUDA implementations. Checks throw "lazy::linear_cross_entropy: expected ..., received ..." and do
// not read data.
// loss, log_prob, correct; and then d_hidden, d_weight
using CrossEntropyOutputs = std::tuple<at::Tensor, at::Tensor, at::Tensor>;
using CrossEntropyGradients = std::tuple<at::Tensor, at::Tensor, at::Tensor, at::Tensor, at::Tensor>;
void check_linear_cross_entropy(const at::Tensor& hidden, const at::Tensor& weight, const at::Tensor& labels);

// Type of the gradients saved for backward. Those of float16 inputs stay in float32 until they are multiplied by the
// gradient of the loss: the mean over many tokens underflows float16, and the gradient of a scaled loss overflows it.
at::ScalarType kept_gradient_type(const at::Tensor& input);

CrossEntropyOutputs without_gradients(const CrossEntropyGradients& all);

}  // namespace lazy::ops
