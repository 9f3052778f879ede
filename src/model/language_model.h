// A decoder-only language model: token ids in, hidden states, logits or a loss out.
//
// Order of the headers of this library; includes point to the left only:
//   config, config_json, streaming_cache, kv_cache, forward_options, activation_hooks, parameters, safetensors
//   < positions/, blocks/ (decoder_block is the exception: it composes a mixer and an MLP)
//   < mixers/
//   < families/, checkpoint, offloaded_weights
//   < language_model < model_options
// config.cc and config_json.cc implement ModelConfig with the registries of mixers/ and families/.
//
// This header needs no ATen header. Callers that use tensors also include <ATen/core/Tensor.h>, forward_options.h for
// the options and results of a pass, and mixers/mixer.h for attention_terms() and projections().
#pragma once
#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "model/config.h"
#include "model/torch_forward.h"

namespace lazy {

struct AttentionProjections;
struct ForwardOptions;
struct ForwardResult;
struct PackedSequences;
struct Quantization;
class ShardHooks;
struct ShardUnit;
namespace ops {
struct AttentionTerms;
}

// Activation checkpointing: what the backward pass recomputes. mlp: the gate and up products; attention: the attention
// half of each layer; full: whole layers.
enum class Checkpointing { none, mlp, attention, full };
inline constexpr auto kCheckpointings = enum_table<Checkpointing>({{Checkpointing::none, "none"},
                                                                   {Checkpointing::mlp, "mlp"},
                                                                   {Checkpointing::attention, "attention"},
                                                                   {Checkpointing::full, "full"}});
Checkpointing checkpointing_from(const std::string& name);  // Error for unknown names
constexpr const char* name(Checkpointing value) { return kCheckpointings.name(value); }

class LanguageModel {
 public:
  // Initializes the weights from N(0, init_std) with `seed`; fp32 master weights.
  LanguageModel(const ModelConfig& config, uint64_t seed);
  // Loads a Hugging Face folder: config.json with model.safetensors (or its sharded index).
  static LanguageModel load(const std::filesystem::path& directory);
  // Loads the weights with a configuration other than config.json's: the same shapes, for example with other positions.
  static LanguageModel load(const std::filesystem::path& directory, ModelConfig config);
  // Opens a model larger than memory: the weights stay on disk, and a layer's weights are on `device` only while it
  // computes (model/offloaded_weights.h). They are read again in every pass. Inference only, in dtype `compute`; the
  // weights cannot be changed, saved or moved.
  static LanguageModel load_offloaded(const std::filesystem::path& directory, at::Device device,
                                      at::ScalarType compute);
  bool offloaded() const;
  ~LanguageModel();
  LanguageModel(LanguageModel&&) noexcept;
  LanguageModel& operator=(LanguageModel&&) noexcept;

  const ModelConfig& config() const;
  // What a layer's attention is, beside queries, keys and values: normalizer, window, offset, biases of scores.
  ops::AttentionTerms attention_terms(int64_t layer) const;  // Error if the layer has no attention
  AttentionProjections projections(int64_t layer) const;     // Error if the layer has no attention
  // Compute dtype of activations and matrix products (kFloat or kBFloat16); master weights stay fp32.
  void set_compute_dtype(at::ScalarType dtype);
  at::ScalarType compute_dtype() const;
  // With compute dtype bf16: products of the layers' linear parts, and their gradients, in 8-bit floating point, one
  // scale a matrix from its largest magnitude (e4m3, gradients e5m2), wherever sizes are multiples of 16. Embedding,
  // head, norms, mixers' own arithmetic and experts stay in bf16. Default: off.
  void set_fp8(bool fp8);
  // Rounds the layers' linear parts and the head (with it a tied embedding) to 8-bit numbers with a scale a row. On a
  // CPU decoding then reads these. The weights stay what they were rounded to. Embedding, norms, mixers' own parameters
  // and experts stay as they are.
  void set_int8();
  // Frees the fp32 weights of the layers' linear parts, embedding and head: they are in the compute dtype alone from
  // now on. For inference; what is saved afterwards has these numbers.
  void hold_compute_dtype();
  // Rounds the layers' linear parts in place, and from now on the inputs of their products and cached keys and values
  // in every pass; inference only. Embedding, head, norms, mixers' own parameters and experts stay as they are. A scale
  // of a tensor or a channel is that of the pass's tokens. Error for a cache of a model without keys and values.
  void quantize(const Quantization& quantization);
  void set_checkpointing(Checkpointing checkpointing);  // for training; default: none
  // Bitwise reproducible gradients on a GPU, at some cost; on a CPU they always are. Default: off.
  void set_deterministic(bool deterministic);
  // Moves the weights. Invalidates the list returned by parameters().
  void to(at::Device device);
  at::Device device() const;

  // ids (batch, length) int64
  ForwardResult forward(const at::Tensor& ids);
  ForwardResult forward(const at::Tensor& ids, const ForwardOptions& options);
  // forward() of several batches, layer by layer: all batches pass a layer before the next one, so offloaded weights
  // are read once. Hooks run for every batch of a layer before the next layer. Inference only; without cache, packing
  // and rows. `step` receives the progress from 0 to 1.
  std::vector<ForwardResult> forward_each(const std::vector<at::Tensor>& batches, const ForwardOptions& options,
                                          const std::function<void(double)>& step = {});
  at::Tensor logits(const at::Tensor& hidden);  // (..., vocab_size) fp32; log-probabilities for an adaptive softmax
  // Mean cross-entropy in nats over labels != -100, differentiable. labels (batch, length) are already shifted. NaN if
  // every label is -100, as in PyTorch. The full logits are never materialized.
  at::Tensor loss(const at::Tensor& ids, const at::Tensor& labels);
  // Per-token log-probability (nats) of labels, fp32 (batch, length), and whether each label is the argmax; no
  // gradient.
  std::pair<at::Tensor, at::Tensor> log_likelihood(const at::Tensor& ids, const at::Tensor& labels);
  std::pair<at::Tensor, at::Tensor> log_likelihood(const at::Tensor& ids, const at::Tensor& labels,
                                                   const ForwardOptions& options);
  // The same for packed sequences: labels (N) that follow the tokens `rows` (N), both int64 on the model's device.
  std::pair<at::Tensor, at::Tensor> log_likelihood(const PackedSequences& packed, const at::Tensor& rows,
                                                   const at::Tensor& labels);

  // The trained parameters: fp32 leaves in a fixed order, with the names of the checkpoint. A tied head is listed once.
  // Several may be views of one storage (q_proj, k_proj and v_proj are computed as one product), so modify them in
  // place.
  const std::vector<std::pair<std::string, at::Tensor>>& parameters() const;
  // The parameters grouped into units for sharding (model/blocks/shard_hooks.h). The hooks run around each use of a
  // unit's weights by this class, including the backward pass of loss(); the weights must be resident only in between.
  // With hooks, tau() and distance_bias() return copies. The hooks must outlive the model or be reset to null.
  const std::vector<ShardUnit>& shard_units() const;
  void set_shard_hooks(ShardHooks* hooks);
  bool decays(const std::string& parameter_name) const;     // weight decay applies to the parameter
  bool keep_fp32(const std::string& parameter_name) const;  // saved in fp32 even in bf16 models

  at::Tensor distance_bias(int64_t layer) const;  // (heads, W) or undefined, as in layers without attention
  at::Tensor tau(int64_t layer) const;            // (heads) or undefined
  at::Tensor sink(int64_t layer) const;           // softmax_sink's term, (heads) or undefined
  at::Tensor alibi_slopes(int64_t layer) const;   // (heads) or undefined

  // A model of `config`, which is to_lazy() of this one's, perhaps with another offset_init: this model's weights on
  // its device, tau = offset_init, and zeros for a new distance bias.
  LanguageModel converted(const ModelConfig& config) const;

  // Replaces the weights by those in `directory`, which must have the same shapes (to resume from a checkpoint).
  void load_weights(const std::filesystem::path& directory);
  // Fingerprint of the tokenizer of the training data; saved in config.json, checked by `lazy generate` and `lazy
  // eval`.
  void set_tokenizer_fingerprint(uint64_t fingerprint);
  // Writes config.json, model.safetensors, generation_config.json into an existing folder. dtype: "fp32" or "bf16".
  void save(const std::filesystem::path& directory, const std::string& dtype = "fp32") const;
  // The tensors that save() writes, and save() from a copy of them, which any thread may call during training.
  const std::vector<std::pair<std::string, at::Tensor>>& stored() const;
  void save(const std::filesystem::path& directory, const std::string& dtype,
            const std::vector<std::pair<std::string, at::Tensor>>& tensors) const;

 private:
  struct Impl;
  explicit LanguageModel(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace lazy
