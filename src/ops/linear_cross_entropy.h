// lazy::linear_cross_entropy: output projection fused with cross-entropy. It processes one chunk of tokens at a time,
// so that only the logits of one chunk are in memory.
#pragma once
#include <cstdint>
#include <tuple>

#include "ops/tensor.h"

namespace lazy::ops {

inline constexpr int64_t kLogitsBytesCuda = int64_t{512} << 20;  // size of the fp32 logits of a chunk on a GPU

// hidden (tokens, dim) fp32 or bf16, on a GPU also fp16; weight (vocab, dim) in the dtype of hidden (autocast casts
// both to its dtype); labels (tokens) int64; tokens whose label is ignore_index are not counted. Returns
//   loss      scalar fp32: mean of -log softmax(hidden weight^T)[label] in nats over the counted tokens; NaN if none
//   log_prob  (tokens) fp32: log-probability of the label, 0 if the token is ignored; not differentiable
//   correct   (tokens) bool: the label has the largest logit; false if the token is ignored
// A label outside of the vocabulary is an error. On a GPU it raises a device-side assertion that names the valid labels
// and is reported at the next synchronization. Differentiable in hidden and weight through the loss. If a gradient is
// required, the forward pass computes it together with the logits of each chunk, and the backward pass only scales it.
std::tuple<at::Tensor, at::Tensor, at::Tensor> linear_cross_entropy(const at::Tensor& hidden, const at::Tensor& weight,
                                                                    const at::Tensor& labels,
                                                                    int64_t ignore_index = -100);

// Only the CPU and CUDA implementations use the following declarations. check_linear_cross_entropy() throws
// "lazy::linear_cross_entropy: expected ..., received ..." for invalid arguments, without reading tensor data.
// CrossEntropyOutputs contains loss, log_prob and correct; CrossEntropyGradients contains loss, log_prob, correct,
// d_hidden and d_weight.
using CrossEntropyOutputs = std::tuple<at::Tensor, at::Tensor, at::Tensor>;
using CrossEntropyGradients = std::tuple<at::Tensor, at::Tensor, at::Tensor, at::Tensor, at::Tensor>;
void check_linear_cross_entropy(const at::Tensor& hidden, const at::Tensor& weight, const at::Tensor& labels);

// Dtype of the gradients that are saved for the backward pass. Gradients of float16 inputs stay in float32 until they
// are multiplied by the gradient of the loss: the mean over many tokens would underflow in float16, and the gradient of
// a scaled loss would overflow.
at::ScalarType kept_gradient_type(const at::Tensor& input);

CrossEntropyOutputs without_gradients(const CrossEntropyGradients& all);

}  // namespace lazy::ops
