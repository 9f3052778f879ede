// Relative positions of Transformer-XL (Dai et al. 2019, arXiv 1901.02860), and attention over segments with a memory.
#pragma once
#include <ATen/core/Tensor.h>

#include <cstdint>
#include <utility>

#include "model/positions/segments.h"
#include "ops/attention.h"

namespace lazy {

// Returns the input of W_r, (count, dim) fp32. Row n encodes distance count - 1 - n: first the sines for all
// frequencies 10000^(-2t / dim), then the cosines. Distances are clamped to `clamp` (0: not clamped).
at::Tensor relative_encodings(int64_t count, int64_t dim, int64_t clamp, const at::TensorOptions& options);

// Returns the number of encodings (rows of r) that relative_attention requires for a text of `keys` tokens.
int64_t relative_reach(int64_t keys, const Segments& segments, int64_t window);

struct RelativeInputs {
  at::Tensor q;     // (batch, queries, heads, head_dim)
  at::Tensor k, v;  // (batch, keys, kv_heads, head_dim); the last query is at the last key
  // Keys and values that tokens of later segments read: the same values as k and v, but detached from the hidden
  // states, so that no gradient flows to earlier segments. Undefined: k and v are used.
  at::Tensor past_k, past_v;
  at::Tensor r;                            // (encodings, heads, head_dim): relative_encodings multiplied by W_r
  at::Tensor content_bias, position_bias;  // (heads, head_dim): the vectors u and v of the paper
  at::Tensor distance_bias, tau;           // as in the attention operator
  // Uses the fields normalizer (softmax, elastic, sigmoid, softmax_sink, elastic_sink), offset, window, sink and
  // return_stats.
  ops::AttentionOptions attention;
  Segments segments;
  int64_t first = 0;  // position of the first key in its text
};

// Computes attention with the scores s_ij = ((q_i + u) k_j + (q_i + v) r_(i-j)) / sqrt(head_dim) + bias_(i-j) over the
// keys j from segments.first_seen(i) to i. Returns the output (batch, queries, heads, head_dim) in the dtype of q, and
// the statistics of the attention operator (undefined if not requested). Scores and weights are fp32 (fp64 for fp64
// inputs). Blocks of queries are recomputed in the backward pass, so memory is linear in the length.
std::pair<at::Tensor, at::Tensor> relative_attention(const RelativeInputs& in);

// Returns the scores (batch, heads, queries, keys) for all keys of `in`, in fp32 (fp64 for fp64 inputs). The score is
// -inf for keys that are masked: later keys, and keys outside the window or outside the segment and its memory.
at::Tensor relative_scores(const RelativeInputs& in);

// Returns the weighted sums of in.v, (batch, queries, heads, head_dim), in v's dtype.
at::Tensor relative_values(const at::Tensor& weights, const RelativeInputs& in);

}  // namespace lazy
