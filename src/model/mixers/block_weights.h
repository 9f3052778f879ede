// Weights of a block of scores, for forms of attention that the operator does not serve.
#pragma once
#include <ATen/core/Tensor.h>

#include "ops/attention.h"

namespace lazy {

// s (batch, heads, queries, keys), -infinity where `visible` (queries, keys) is not; count: keys that a query sees,
// (queries, 1) or one number. Of softmax, elastic, sigmoid and softmax_sink; tau as the operator's.
at::Tensor block_weights(const at::Tensor& s, const at::Tensor& visible, const at::Tensor& count, const at::Tensor& tau,
                         const ops::AttentionOptions& options);

}  // namespace lazy
