// Attention of Titans (arXiv 2501.00663): a sliding window, plus persistent tokens that are visible to every query.
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

// The parameter `persistent`, (tokens, hidden_size). The number of persistent tokens may be 0.
at::Tensor persistent_tokens(const ParameterTable& table, const ModelConfig& config);

struct WithPersistent {
  at::Tensor x;          // [persistent | x] for every document; only x if a cache with earlier tokens is continued
  at::Tensor positions;  // (tokens) int64: positions, including the persistent tokens
  // Layout of the packed documents including the persistent tokens, valid during the forward pass; null if not packed.
  const PackedSequences* packed = nullptr;
  at::Tensor rows;    // packed documents: index of each original token in x
  int64_t added = 0;  // not packed: number of persistent tokens before x

  at::Tensor text(const at::Tensor& y) const;  // removes the persistent tokens from y (batch, tokens, ...)
};

// Prepends the persistent tokens to each document. x (batch, length, hidden_size), persistent (tokens, hidden_size).
WithPersistent with_persistent(const at::Tensor& x, const at::Tensor& persistent, const ForwardOptions& options);

// Attention with one softmax over the keys of a prefix and the keys of the window. q, k, v have the shapes of
// ops::attention, batched or packed (with options.cu_seqlens_q). The options must select causal softmax. prefix_q has
// the shape of q and contains the queries for the prefix; prefix_k and prefix_v are (prefix, heads, head_dim). The
// scores of the prefix are materialized, because the prefix is short. The output is differentiable with respect to all
// six tensors.
at::Tensor prefix_attention(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, const at::Tensor& prefix_q,
                            const at::Tensor& prefix_k, const at::Tensor& prefix_v,
                            const ops::AttentionOptions& options);

class SlidingAttention {
 public:
  SlidingAttention(const ModelConfig& config, int64_t layer, at::Device device);

  struct Tokens {
    at::Tensor positions;   // (tokens) int64
    at::Tensor cu_seqlens;  // (documents + 1): offsets of packed documents; undefined: sequences are not packed
  };
  // Maps x (batch, length, hidden_size) to the concatenated heads, with the same shape. `past` is null or contains the
  // keys and values of the window; an empty list is filled. prefix (tokens, hidden_size) contains tokens without RoPE
  // that are also visible to every query; it may be undefined.
  at::Tensor forward(const NormOutput& x, const Tokens& tokens, const at::Tensor& prefix, std::vector<at::Tensor>* past,
                     bool deterministic) const;

  Linear qkv;  // the projections q_proj, k_proj and v_proj

 private:
  ModelConfig config_;
  int64_t window_;
};

}  // namespace lazy
