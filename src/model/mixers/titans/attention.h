// Attention of Titans (arXiv 2501.00663): a sliding window, with persistent tokens that every query sees.
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

// The parameter `persistent`, (tokens, hidden_size); none of no tokens.
at::Tensor persistent_tokens(const ParameterTable& table, const ModelConfig& config);

struct WithPersistent {
  at::Tensor x;                             // [persistent | x], of every document; x alone where a cache continues
  at::Tensor positions;                     // (tokens) int64 places in it, the persistent ones included
  const PackedSequences* packed = nullptr;  // packed documents with theirs, as long as the pass takes; null: not packed
  at::Tensor rows;                          // of packed documents: where x's tokens stand in it
  int64_t added = 0;                        // persistent tokens before x, of one not packed

  at::Tensor text(const at::Tensor& y) const;  // y (batch, tokens, ...) without the persistent tokens' rows
};

// x (batch, length, hidden_size), persistent (tokens, hidden_size).
WithPersistent with_persistent(const at::Tensor& x, const at::Tensor& persistent, const ForwardOptions& options);

// One softmax over the prefix and the window's keys. q, k, v as for ops::attention, with batch axis or packed (then
// options.cu_seqlens_q); options: causal softmax. prefix_q like q: what the prefix is asked with, prefix_k and prefix_v
// (prefix, heads, head_dim). The prefix is few tokens: its scores are formed. Differentiable in all six.
at::Tensor prefix_attention(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, const at::Tensor& prefix_q,
                            const at::Tensor& prefix_k, const at::Tensor& prefix_v,
                            const ops::AttentionOptions& options);

class SlidingAttention {
 public:
  SlidingAttention(const ModelConfig& config, int64_t layer, at::Device device);

  struct Tokens {
    at::Tensor positions, cu_seqlens;  // as in WithPersistent, of the tokens of x
  };
  // x (batch, length, hidden_size) -> the same: the heads side by side. `past`: null, or the keys and values of a
  // window, a list that this fills when it is empty. prefix (tokens, hidden_size): tokens that every query sees
  // besides, unturned; undefined: none.
  at::Tensor forward(const NormOutput& x, const Tokens& tokens, const at::Tensor& prefix, std::vector<at::Tensor>* past,
                     bool deterministic) const;

  Linear qkv;  // parts: q_proj, k_proj, v_proj

 private:
  ModelConfig config_;
  int64_t window_;
};

}  // namespace lazy
