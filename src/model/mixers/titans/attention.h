// Attention of Titans (arXiv 2501.00663): a sliding window plus persistent tokens that are visible to every query.
#pragma once
#include <ATen/core/Tensor.h>

#include "model/blocks/linear.h"
#include "model/config.h"
#include "ops/attention.h"

namespace lazy {

struct ForwardOptions;
struct ModelConfig;
struct PackedSequences;
class ParameterTable;

// The parameter `persistent`, (tokens, hidden_size); tokens may be 0.
at::Tensor persistent_tokens(const ParameterTable& table, const ModelConfig& config);

struct WithPersistent {
  at::Tensor x;          // [persistent | x] of every document; only x when continuing from a cache
  at::Tensor positions;  // (tokens) int64: positions, counting the persistent tokens
  const PackedSequences* packed =
      nullptr;        // layout of packed documents with persistent tokens, valid during the pass; null: not packed
  at::Tensor rows;    // packed documents: indices of x's tokens in the extended sequence
  int64_t added = 0;  // not packed: number of persistent tokens before x

  at::Tensor text(const at::Tensor& y) const;  // removes the persistent tokens from y (batch, tokens, ...)
};

// x (batch, length, hidden_size), persistent (tokens, hidden_size).
WithPersistent with_persistent(const at::Tensor& x, const at::Tensor& persistent, const ForwardOptions& options);

// One softmax over the prefix and the window's keys. q, k, v as for ops::attention, batched or packed (with
// options.cu_seqlens_q); options: causal softmax. prefix_q, shaped like q: the queries for the prefix; prefix_k and
// prefix_v (prefix, heads, head_dim). The prefix is short, so its scores are materialized. Differentiable in all six
// tensors.
at::Tensor prefix_attention(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, const at::Tensor& prefix_q,
                            const at::Tensor& prefix_k, const at::Tensor& prefix_v,
                            const ops::AttentionOptions& options);

class SlidingAttention {
 public:
  SlidingAttention(const ModelConfig& config, int64_t layer, at::Device device);

  struct Tokens {
    at::Tensor positions, cu_seqlens;  // as in WithPersistent, of the tokens of x
  };
  // x (batch, length, hidden_size) -> the same shape, the concatenated heads. `past`: null, or the keys and values of
  // the window, a list that is filled if empty. prefix (tokens, hidden_size): tokens without RoPE that every query sees
  // as well; undefined: none.
  at::Tensor forward(const NormOutput& x, const Tokens& tokens, const at::Tensor& prefix, std::vector<at::Tensor>* past,
                     bool deterministic) const;

  Linear qkv;  // parts: q_proj, k_proj, v_proj

 private:
  ModelConfig config_;
  int64_t window_;
};

}  // namespace lazy
