// The members of LanguageModel, for the files that implement it.
#pragma once
#include <map>
#include <memory>
#include <optional>
#include <tuple>

#include "model/blocks/adaptive_tables.h"
#include "model/blocks/decoder_block.h"
#include "model/blocks/linear.h"
#include "model/blocks/shard_hooks.h"
#include "model/checkpoint.h"
#include "model/forward_options.h"
#include "model/language_model.h"
#include "model/offloaded_weights.h"
#include "model/parameters.h"
#include "model/quantization.h"
#include "ops/fused_decode_layers.h"
#include "ops/skinny_gemm.h"

namespace lazy {

struct LanguageModel::Impl {
  // If `empty` is true, no memory is allocated for the trained weights.
  Impl(const ModelConfig& model, at::Device where, bool empty = false);

  // The functions of this group are defined in language_model.cc. collect() fills `stored` with all tensors in the
  // order of the checkpoint, `trained` with the tensors that require a gradient (fixed offsets, for example, do not),
  // and `shard_units`.
  void collect();
  void initialize(uint64_t seed);
  void quantize();  // rounds weights, inputs and cache as the member `quantization` specifies
  void require_resident_weights(const char* what) const;
  const ParameterShape& shape(const std::string& name) const;
  // Returns the normalizer, window, offset and biases of a layer's attention, or default values for layers without
  // attention.
  ops::AttentionTerms terms(int64_t layer) const;
  void require_attention(int64_t layer) const;
  // Returns `weight`, a weight of the layer, or a copy of it if the weights are sharded or offloaded.
  at::Tensor materialize(int64_t layer, const at::Tensor& weight) const;

  // The forward pass, implemented in language_model_pass.cc. check() throws an Error if the model does not support the
  // pass.
  void check(const at::Tensor& ids, const ForwardOptions& options) const;
  // Returns the token embeddings plus absolute position embeddings, if any; `options` gives the token positions.
  at::Tensor embed(const at::Tensor& ids, const ForwardOptions& options) const;
  // begin() returns the residual stream before the first layer, and final_hidden() the hidden states after the final
  // norm.
  ResidualStream begin(const at::Tensor& ids, const ForwardOptions& options) const;
  void forward_layer(size_t index, ResidualStream& stream, const ForwardOptions& options, at::Tensor* stats) const;
  at::Tensor final_hidden(ResidualStream stream, const ForwardOptions& options) const;
  // Computes all layers in the fused decode kernel (ops/fused_decode_layers.h). Returns false if the kernel does not
  // support this pass.
  bool fused_decode_layers(ResidualStream& stream, const ForwardOptions& options) const;
  std::vector<ForwardResult> run(const std::vector<at::Tensor>& batches, ForwardOptions options,
                                 const std::function<void(double)>& step) const;
  // Returns the results of ops::linear_cross_entropy for `hidden`, (tokens, hidden_size).
  std::tuple<at::Tensor, at::Tensor, at::Tensor> cross_entropy(const at::Tensor& hidden, const at::Tensor& labels);
  const at::Tensor& head_leaf() const { return head.defined() ? head : embedding; }
  // Returns the weight matrix of the head in the compute dtype. With autograd enabled, the conversion is
  // differentiable. Otherwise it is cached, unless the weights are sharded or offloaded.
  at::Tensor head_matrix();

  // kEmbedding and the following functions are indices of units in `shard_units`.
  static constexpr size_t kEmbedding = 0;
  static size_t unit_of(int64_t layer) { return static_cast<size_t>(layer) + 1; }
  size_t final_norm_unit() const { return blocks.size() + 1; }
  size_t head_unit() const { return head.defined() ? blocks.size() + 2 : kEmbedding; }

  ModelConfig config;
  at::Device device;
  CheckpointNames names;
  std::map<std::string, ParameterShape> shapes;  // key: name in the checkpoint
  at::Tensor embedding, position_table, head;    // head is undefined if tied to the embedding
  std::optional<AdaptiveTables> adaptive;        // if set, replaces `embedding` and `head`
  NormWeights embedding_norm, final_norm;
  std::vector<DecoderBlock> blocks;
  CastCache head_cast;
  ops::Int8Matrix head_int8;
  mutable ops::SyncFlags sync_flags;
  NamedTensors stored, trained;
  std::vector<ShardUnit> shard_units;
  ShardHooks* hooks = nullptr;
  std::unique_ptr<OffloadedWeights> loader;  // set only for offloaded models; it also provides their shard hooks
  at::ScalarType dtype = at::kFloat;
  Checkpointing checkpointing = Checkpointing::none;
  bool deterministic = false;
  Quantization quantization;
};

}  // namespace lazy
