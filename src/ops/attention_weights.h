// Attention scores and weights as explicit tensors (batch, heads, queries, keys), for activation hooks, measurements
// and attention variants that the operator does not support. The operator itself never materializes these matrices.
#pragma once
#include <ATen/core/Tensor.h>

#include "ops/attention.h"

namespace lazy::ops {

struct AttentionTerms {
  AttentionOptions options;       // normalizer, offset, window, scale, softcap, sink, ALiBi slopes
  at::Tensor distance_bias, tau;  // undefined: not used
};

// Returns the weights (batch, heads, queries, keys) as lazy::attention defines them, computed in float64 on the CPU by
// the reference implementation. q is (batch, queries, heads, head_dim), and k is (batch, keys, kv_heads, head_dim). The
// weight of a masked key is 0.
at::Tensor reference_weights(const at::Tensor& q, const at::Tensor& k, const AttentionTerms& terms);

// attention_scores() and normalized_weights() compute the same weights as reference_weights() in two differentiable
// steps with tensor operations, on any device, in the precision of q but at least fp32.
//
// Returns the scores (batch, heads, queries, keys). Query 0 is at the position of key `first`. Keys after a query or
// outside its window have the score -inf.
at::Tensor attention_scores(const at::Tensor& q, const at::Tensor& k, const AttentionTerms& terms, int64_t first = 0);
// Applies the softcap of `options`, if it is set, to `products`, the scaled products scale * q . k.
at::Tensor soft_capped(const at::Tensor& products, const AttentionOptions& options);
// Returns the weights; the weight is 0 where the score is -inf.
at::Tensor normalized_weights(const at::Tensor& scores, const AttentionTerms& terms);

// Returns the attention weights for a block of the keys. scores (batch, heads, queries, keys) is -inf where `visible`
// (queries, keys) is false. `count`, (queries, 1) or one number, is the number of keys that a query sees in total; it
// may exceed the number of keys in the block. Does not support sparsemax and entmax15.
at::Tensor block_weights(const at::Tensor& scores, const at::Tensor& visible, const at::Tensor& count,
                         const at::Tensor& tau, const AttentionOptions& options);

// Returns the statistics that the operator computes, for given weights: (3, batch, heads, queries).
at::Tensor weight_statistics(const at::Tensor& weights);

// Returns the weighted sums of the values v (batch, keys, kv_heads, head_dim), with the shape (batch, queries, heads,
// head_dim).
at::Tensor weighted_values(const at::Tensor& weights, const at::Tensor& v);

}  // namespace lazy::ops
