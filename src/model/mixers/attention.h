// Attention as a token mixer: projections, RoPE, the attention operator and the output projection. Lazy Attention
// (arXiv 2601.00919) differs from softmax attention only in the normalizer, the distance bias and the offset.
#pragma once
#include <ATen/core/Tensor.h>

#include "model/blocks/linear.h"
#include "model/config.h"
#include "model/mixers/mixer.h"
#include "ops/attention.h"
#include "ops/attention_weights.h"
#include "ops/rope.h"

namespace lazy {

struct PackedSequences;
struct KVCache;
struct PagedKeys;
class LayerHooks;

class AttentionMixer : public Mixer {
 public:
  AttentionMixer(const ModelConfig& config, int64_t layer, at::Device device);

  at::Tensor forward(const NormOutput& x, int64_t layer, const ForwardOptions& options,
                     at::Tensor* stats) const override;
  bool computes_norm(const ForwardOptions& options) const override;
  bool describe(ops::FusedDecodeLayer& layer, const ForwardOptions& options) const override;
  NamedTensors parameters() const override;
  std::vector<const Linear*> products() const override;
  bool init_parameter(const std::string& name, at::Tensor& tensor, const ModelConfig& config,
                      at::Generator& generator) const override;

  bool set_cache_rounding(const ops::Rounding& rounding) const override;

  std::optional<ops::AttentionTerms> attention_terms() const override {
    return ops::AttentionTerms{attention_options(), distance_bias, tau};
  }
  std::optional<AttentionProjections> attention_projections() const override {
    return AttentionProjections{qkv.parts()[0], qkv.parts()[1], qkv.parts()[2], q_bias, k_bias, v_bias};
  }

  // The parameters of the linear layers: `qkv` has q_proj, k_proj and v_proj; `output` has o_proj; `gate` has
  // gate_proj, or no parameters if the configuration has no output gate.
  Linear qkv, output, gate;
  at::Tensor distance_bias;  // (heads, W) fp32: bias at the distances 0 to W - 1; undefined without a bias
  at::Tensor tau;            // offset of elastic softmax, (heads) fp32; undefined without an offset
  at::Tensor sink,
      slopes;  // (heads) fp32: sink logits of softmax_sink and elastic_sink, slopes of ALiBi; undefined if not used
  at::Tensor q_bias, k_bias, v_bias, o_bias;  // (out_features) fp32; undefined without biases
  at::Tensor q_norm, k_norm;  // (head_dim) fp32: weights of the RMSNorm of each head; undefined without these norms
  // Parameters of Transformer-XL positions (arXiv 1901.02860), fp32: r_proj is the matrix W_r of the paper, (heads *
  // head_dim, hidden_size); content_bias and position_bias are its vectors u and v, (heads, head_dim). Undefined for
  // other kinds of positions.
  at::Tensor r_proj, content_bias, position_bias;

 private:
  // Computes the attention over packed documents. q, k and v are (1, tokens, heads, head_dim); the result is (tokens,
  // heads, head_dim).
  at::Tensor attend_packed(const at::Tensor& q, at::Tensor k, at::Tensor v, const PackedSequences& packed,
                           ops::AttentionOptions options, at::Tensor* stats) const;

  // Describes the slots of the paged KV cache to which the layer writes its new keys and values. If `rope_base` is 0, q
  // and k are already rotated.
  ops::PagePlaces places_of(int64_t layer, double rope_base, const ops::RopeOptions& rope,
                            const PagedKeys& paged) const;
  // Used if paged.sources is defined: writes the new keys and values to their pages, gathers the keys and values that
  // paged.sources refers to into contiguous tensors, and computes the attention over these tensors.
  at::Tensor attend_gathered(const ops::PageWrite& write, const PagedKeys& paged, ops::AttentionOptions options,
                             at::Tensor* stats) const;
  // Used if paged.sources is undefined: computes the attention of q over the pages of each sequence. q is already
  // rotated, and the keys and values of the new tokens are already in the pages.
  at::Tensor attend_paged(const at::Tensor& q, int64_t layer, const PagedKeys& paged,
                          const ops::AttentionOptions& options, at::Tensor* stats) const;

  // Reshapes one part of qkv to (batch, length, heads, head_dim) and adds the bias if there is one.
  at::Tensor by_head(const at::Tensor& part, const at::Tensor& bias, int64_t heads) const;
  // Applies the RMSNorm with weight `norm` to each head of `heads`; returns `heads` unchanged if `norm` is undefined.
  at::Tensor normed(const at::Tensor& heads, const at::Tensor& norm) const;

  // Rounds keys or values (batch, length, kv_heads, head_dim) to the precision of the cache (set_cache_rounding). If
  // the rounding uses one scale per token, each key-value head of a token has a separate scale.
  at::Tensor as_cached(const at::Tensor& tokens) const;

  // Computes attention with scores and weights as tensors, so that activation hooks can read and change them. `first`
  // is the position of the first query.
  at::Tensor attend_explicitly(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, int64_t first,
                               const LayerHooks& probe, at::Tensor* stats) const;

  // Computes attention with a streaming cache: a KV cache of constant size that retains only some of the tokens
  // (streaming.h).
  at::Tensor stream(const std::vector<at::Tensor>& parts, int64_t layer, KVCache& cache) const;
  // Computes attention with the relative positions of Transformer-XL. Returns (batch, length, heads, head_dim).
  at::Tensor attend_relative(const NormOutput& x, const std::vector<at::Tensor>& parts, int64_t layer,
                             const ForwardOptions& options, at::Tensor* stats) const;
  ops::AttentionOptions attention_options() const;
  // Returns the layer's output: multiplies `heads` (batch, length, heads, head_dim) by the gate, which is computed from
  // the layer's input x, and applies o_proj.
  at::Tensor project(const at::Tensor& heads, const NormOutput& x, const LayerHooks& probe) const;

  ModelConfig config_;
  int64_t heads_, kv_heads_, head_dim_, window_;
  double scale_;
  mutable ops::Rounding cache_rounding_;
};

}  // namespace lazy
