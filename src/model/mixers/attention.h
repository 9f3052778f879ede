// Attention as a token mixer: projections, RoPE, the operator, the output projection. One class serves softmax and Lazy
// Attention (arXiv 2601.00919): they differ by the normalizer, the distance bias and the offset.
#pragma once
#include <ATen/core/Tensor.h>

#include "model/blocks/linear.h"
#include "model/config.h"
#include "ops/attention.h"

namespace lazy {

struct ForwardOptions;
struct PackedSequences;

class AttentionMixer {
 public:
  AttentionMixer(const ModelConfig& config, at::Device device);

  // x (batch, length, hidden_size) -> the same shape. `layer` tells the cache and the hook which one this is. `stats`
  // receives (3, batch, heads, length) when not null.
  at::Tensor forward(const Normalized& x, int64_t layer, const ForwardOptions& options, at::Tensor* stats) const;

  Linear qkv, output;        // parts: q_proj, k_proj, v_proj; o_proj
  at::Tensor distance_bias;  // (heads, W) fp32, undefined when there is none
  at::Tensor tau;            // (heads) fp32, undefined when there is none

 private:
  // q, k, v (1, tokens, heads, head_dim) -> (tokens, heads, head_dim)
  at::Tensor attend_packed(const at::Tensor& q, at::Tensor k, at::Tensor v, const PackedSequences& packed,
                           ops::AttentionOptions options, at::Tensor* stats) const;

  int64_t heads_, kv_heads_, head_dim_, window_;
  double rope_base_;
  std::string normalizer_, offset_;
};

}  // namespace lazy
