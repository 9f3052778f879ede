// Attention's scores and weights as tensors, (batch, heads, queries, keys), by their definitions (SPEC section 2): for
// probes and for measures over blocks of queries. The operator never makes them.
#pragma once
#include <ATen/core/Tensor.h>

#include "ops/attention.h"

namespace lazy {

struct AttentionTerms {
  ops::AttentionOptions options;  // normalizer, offset, window, scale, sink, ALiBi's slopes
  at::Tensor distance_bias, tau;  // undefined: none
};

// A layer's products into queries, keys and values, (out_features, hidden_size) fp32, and their biases, undefined where
// there are none. They are the model's own: changed in place, it changes.
struct AttentionProjections {
  at::Tensor q, k, v, q_bias, k_bias, v_bias;
};

// q (batch, queries, heads, head_dim), k (batch, keys, kv_heads, head_dim). Query 0 stands at key `first`; keys after a
// query or outside its window are -inf. In the precision of q, at least fp32.
at::Tensor attention_scores(const at::Tensor& q, const at::Tensor& k, const AttentionTerms& terms, int64_t first = 0);

// Zero where the score is -inf.
at::Tensor normalized_weights(const at::Tensor& scores, const AttentionTerms& terms);

// What the operator reports of these weights: (3, batch, heads, queries).
at::Tensor weight_statistics(const at::Tensor& weights);

// weights times v (batch, keys, kv_heads, head_dim): (batch, queries, heads, head_dim).
at::Tensor weighted_values(const at::Tensor& weights, const at::Tensor& v);

}  // namespace lazy
