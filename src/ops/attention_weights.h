// Attention's scores and weights as explicit tensors (batch, heads, queries, keys), for probes, measurements and forms
// of attention that the operator does not serve. The operator itself never makes these matrices.
#pragma once
#include <ATen/core/Tensor.h>

#include "ops/attention.h"

namespace lazy::ops {

struct AttentionTerms {
  AttentionOptions options;       // normalizer, offset, window, scale, softcap, sink, ALiBi's slopes
  at::Tensor distance_bias, tau;  // undefined: none
};

// The kernels' float64 definition: weights (batch, heads, queries, keys) in float64 on the CPU, as lazy::attention
// computes them for q (batch, queries, heads, head_dim) and k (batch, keys, kv_heads, head_dim). Zero for hidden keys.
at::Tensor reference_weights(const at::Tensor& q, const at::Tensor& k, const AttentionTerms& terms);

// The same in two differentiable steps of tensor operations, on any device, in the precision of q but at least fp32.
//
// Scores: query 0 stands at key `first`; keys after a query or outside its window are -inf.
at::Tensor attention_scores(const at::Tensor& q, const at::Tensor& k, const AttentionTerms& terms, int64_t first = 0);
// scale q . k with the softcap of `options`, if there is one; before any bias is added.
at::Tensor soft_capped(const at::Tensor& products, const AttentionOptions& options);
// Weights: zero where the score is -inf.
at::Tensor normalized_weights(const at::Tensor& scores, const AttentionTerms& terms);

// Weights of a block of scores (batch, heads, queries, keys), -inf where `visible` (queries, keys) is false. `count`:
// keys that a query sees, (queries, 1) or one number, which need not be those of the block. Not for sparsemax and
// entmax15.
at::Tensor block_weights(const at::Tensor& scores, const at::Tensor& visible, const at::Tensor& count,
                         const at::Tensor& tau, const AttentionOptions& options);

// The operator's statistics of these weights: (3, batch, heads, queries).
at::Tensor weight_statistics(const at::Tensor& weights);

// weights times v (batch, keys, kv_heads, head_dim): (batch, queries, heads, head_dim).
at::Tensor weighted_values(const at::Tensor& weights, const at::Tensor& v);

}  // namespace lazy::ops
