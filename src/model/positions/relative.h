// Relative positions of Transformer-XL (Dai et al. 2019, arXiv 1901.02860), and attention over segments with memory.
#pragma once
#include <ATen/core/Tensor.h>

#include <algorithm>
#include <cstdint>
#include <utility>

#include "ops/attention.h"

namespace lazy {

// A text is cut into segments of `length` tokens (0: it is one segment), each of which sees the `memory` tokens before
// it.
struct Segments {
  int64_t length = 0, memory = 0;
  int64_t begin(int64_t token) const { return length > 0 ? token / length * length : 0; }  // of the token's segment
  int64_t first_seen(int64_t token) const { return std::max<int64_t>(0, begin(token) - memory); }
};

// W_r's input: row n is the encoding of distance count - 1 - n, (count, dim) fp32: the sines of all frequencies
// 10000^(-2t / dim), then their cosines. Distances beyond `clamp` (0: none) are told from it no more.
at::Tensor relative_encodings(int64_t count, int64_t dim, int64_t clamp, const at::TensorOptions& options);

// How many encodings relative_attention needs for a text of `keys` tokens.
int64_t relative_reach(int64_t keys, const Segments& segments, int64_t window);

struct RelativeInputs {
  at::Tensor q;     // (batch, queries, heads, head_dim)
  at::Tensor k, v;  // (batch, keys, kv_heads, head_dim); the last query stands at the last key
  // What a later segment sees of these: the same values, without gradient for the hidden states. Undefined: k and v.
  at::Tensor past_k, past_v;
  at::Tensor r;                            // (encodings, heads, head_dim): W_r of relative_encodings
  at::Tensor content_bias, position_bias;  // (heads, head_dim): u and v of the paper
  at::Tensor distance_bias, tau;           // as the operator's
  ops::AttentionOptions
      attention;  // normalizer (softmax, elastic, sigmoid, softmax_sink), offset, window, sink, statistics
  Segments segments;
  int64_t first = 0;  // where key 0 stands in its text
};

// s_ij = ((q_i + u) k_j + (q_i + v) r_(i-j)) / sqrt(head_dim) + bias_(i-j) over the keys from segments.first_seen(i) to
// i, the normalizer's weights of it, and their mean of v: (batch, queries, heads, head_dim) in q's precision, scores
// and weights in fp32 (fp64 of fp64 inputs). The second is the operator's statistics, or undefined. Strips of queries
// are computed again in the backward pass: memory is linear in the length.
std::pair<at::Tensor, at::Tensor> relative_attention(const RelativeInputs& in);

// (batch, heads, queries, keys) of all keys in `in`, -inf where a query does not see one: later ones, and those that
// its segment does not remember or its window has left behind. fp32 (fp64 of fp64 inputs).
at::Tensor relative_scores(const RelativeInputs& in);

// The mean of v by such weights, (batch, queries, heads, head_dim) in v's precision.
at::Tensor relative_values(const at::Tensor& weights, const RelativeInputs& in);

}  // namespace lazy
