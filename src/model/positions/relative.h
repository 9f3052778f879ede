// Relative positions of Transformer-XL (Dai et al. 2019, arXiv 1901.02860), and attention over segments with memory.
#pragma once
#include <ATen/core/Tensor.h>

#include <cstdint>
#include <utility>

#include "model/positions/segments.h"
#include "ops/attention.h"

namespace lazy {

// W_r's input, (count, dim) fp32: row n encodes distance count - 1 - n as the sines of all frequencies 10000^(-2t /
// dim), then their cosines. Distances are clamped to `clamp` (0: not clamped).
at::Tensor relative_encodings(int64_t count, int64_t dim, int64_t clamp, const at::TensorOptions& options);

// The number of encodings that relative_attention needs for a text of `keys` tokens.
int64_t relative_reach(int64_t keys, const Segments& segments, int64_t window);

struct RelativeInputs {
  at::Tensor q;     // (batch, queries, heads, head_dim)
  at::Tensor k, v;  // (batch, keys, kv_heads, head_dim); the last query is at the last key
  // Keys and values as seen by later segments: the same values, detached from the hidden states. Undefined: k and v.
  at::Tensor past_k, past_v;
  at::Tensor r;                            // (encodings, heads, head_dim): W_r of relative_encodings
  at::Tensor content_bias, position_bias;  // (heads, head_dim): u and v of the paper
  at::Tensor distance_bias, tau;           // as in the attention operator
  ops::AttentionOptions
      attention;  // normalizer (softmax, elastic, sigmoid, softmax_sink), offset, window, sink, statistics
  Segments segments;
  int64_t first = 0;  // position of key 0 in its text
};

// Attention with s_ij = ((q_i + u) k_j + (q_i + v) r_(i-j)) / sqrt(head_dim) + bias_(i-j) over the keys from
// segments.first_seen(i) to i. Returns the output (batch, queries, heads, head_dim) in q's dtype, and the statistics as
// of the operator, or undefined. Scores and weights are fp32 (fp64 for fp64 inputs). Blocks of queries are recomputed
// in the backward pass, so memory is linear in the length.
std::pair<at::Tensor, at::Tensor> relative_attention(const RelativeInputs& in);

// (batch, heads, queries, keys) for all keys of `in`, fp32 (fp64 for fp64 inputs). -inf at keys that are not visible:
// later keys, and keys outside the segment's memory or the window.
at::Tensor relative_scores(const RelativeInputs& in);

// The weighted sum of v, (batch, queries, heads, head_dim) in v's dtype.
at::Tensor relative_values(const at::Tensor& weights, const RelativeInputs& in);

}  // namespace lazy
