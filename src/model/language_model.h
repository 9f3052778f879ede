// A decoder-only language model: token ids in, hidden states, logits or a loss out.
//
// Order of the headers of this library; includes point to the left only:
//   config, config_json, kv_cache, forward_options, activation_hooks, parameters, safetensors
//   < positions/, blocks/ (decoder_block is the exception: it composes a mixer and an MLP)
//   < mixers/
//   < families/, checkpoint, offloaded_weights
//   < language_model < model_options
// config.cc and config_json.cc implement ModelConfig with the registries of mixers/ and families/.
#pragma once
#include <ATen/core/Tensor.h>

#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "model/config.h"
#include "model/forward_options.h"
#include "model/kv_cache.h"
#include "model/mixers/mixer.h"

namespace lazy {

class ShardHooks;
struct ShardUnit;

struct ForwardResult {
  at::Tensor hidden;              // (batch, length, hidden_size) after the final norm; (1, rows, hidden_size) of some
  std::vector<at::Tensor> stats;  // per layer, (3, batch, heads, length) fp32, see lazy::attention; undefined in others
};

// Activation checkpointing: what the backward pass recomputes. Nothing expensive, the gate and up products of each MLP,
// each layer's attention half, or whole layers.
enum class Checkpointing { none, mlp, attention, full };
inline constexpr auto kCheckpointings = enum_table<Checkpointing>({{Checkpointing::none, "none"},
                                                                   {Checkpointing::mlp, "mlp"},
                                                                   {Checkpointing::attention, "attention"},
                                                                   {Checkpointing::full, "full"}});
Checkpointing checkpointing_from(const std::string& name);  // Error for other names
constexpr const char* name(Checkpointing value) { return kCheckpointings.name(value); }

class LanguageModel {
 public:
  // Fresh weights, N(0, init_std), from `seed`; fp32 master weights.
  LanguageModel(const ModelConfig& config, uint64_t seed);
  // A Hugging Face folder: config.json + model.safetensors (or its sharded index form).
  static LanguageModel load(const std::filesystem::path& directory);
  // Its weights under another configuration than its config.json's: the same shapes, other positions.
  static LanguageModel load(const std::filesystem::path& directory, ModelConfig config);
  // A model larger than memory: the weights stay in the folder, and a layer's weights are on `device` only while it
  // computes, read again in every pass (model/offloaded_weights.h). For inference in the precision `compute`: the
  // weights cannot be changed, saved or moved.
  static LanguageModel load_offloaded(const std::filesystem::path& directory, at::Device device,
                                      at::ScalarType compute);
  bool offloaded() const;
  ~LanguageModel();
  LanguageModel(LanguageModel&&) noexcept;
  LanguageModel& operator=(LanguageModel&&) noexcept;

  const ModelConfig& config() const;
  // What a layer's attention is, beside queries, keys and values: normalizer, window, offset, biases of scores.
  ops::AttentionTerms attention_terms(int64_t layer) const;  // Error where another mixer is
  AttentionProjections projections(int64_t layer) const;     // likewise
  // Compute precision of activations and products; master weights stay fp32 (kFloat or kBFloat16).
  void set_compute_dtype(at::ScalarType dtype);
  at::ScalarType compute_dtype() const;
  void set_checkpointing(Checkpointing checkpointing);  // of training; Checkpointing::none at first
  // Gradients with the same bits from run to run on a GPU, at some cost (a CPU's always are). Off at first.
  void set_deterministic(bool deterministic);
  // Moves the weights. Call before taking parameters(): the list is renewed.
  void to(at::Device device);
  at::Device device() const;

  ForwardResult forward(const at::Tensor& ids, const ForwardOptions& options = {});  // ids (batch, length) int64
  // forward of several batches, layer by layer: each layer's weights serve all batches before the next layer's, so
  // offloaded weights are read once. Hooks see a layer of every batch before the next layer. No gradient; without a
  // cache, packing and rows. `step` receives the progress, from 0 to 1.
  std::vector<ForwardResult> forward_each(const std::vector<at::Tensor>& batches, const ForwardOptions& options,
                                          const std::function<void(double)>& step = {});
  at::Tensor logits(const at::Tensor& hidden);  // (..., vocab_size) fp32; log-probabilities of an adaptive vocabulary
  // Mean cross-entropy in nats over labels != -100, differentiable; labels (batch, length), already shifted; NaN
  // when every label is -100, as in PyTorch.
  // The logits of all positions never exist at once.
  at::Tensor loss(const at::Tensor& ids, const at::Tensor& labels);
  // Per-token log-probability (nats) of labels, fp32 (batch, length), and whether it was the argmax; no gradient.
  std::pair<at::Tensor, at::Tensor> log_likelihood(const at::Tensor& ids, const at::Tensor& labels,
                                                   const ForwardOptions& options = {});
  // The same for labels (N) that follow the tokens `rows` (N) of packed sequences; both int64, on the model's device.
  std::pair<at::Tensor, at::Tensor> log_likelihood(const PackedSequences& packed, const at::Tensor& rows,
                                                   const at::Tensor& labels);

  // The trained ones: fp32 leaves, in a fixed order. Names are the checkpoint's. Tied heads appear
  // once. Several may be views of one storage (q_proj, k_proj and v_proj are computed as one product): change them in
  // place.
  const std::vector<std::pair<std::string, at::Tensor>>& parameters() const;
  // The same by units for sharding (model/blocks/shard_hooks.h). Hooks run around each use of a unit's weights by this
  // class, including the backward pass of loss(); the weights need to be resident only in between. With hooks, tau()
  // and distance_bias() return copies. The hooks must outlive the model, or be replaced by null.
  const std::vector<ShardUnit>& shard_units() const;
  void set_shard_hooks(ShardHooks* hooks);
  bool decays(const std::string& parameter_name) const;     // weight decay applies
  bool keep_fp32(const std::string& parameter_name) const;  // in saved bf16 models too

  at::Tensor distance_bias(int64_t layer) const;  // (heads, W) or undefined, as in layers that do not attend
  at::Tensor tau(int64_t layer) const;            // (heads) or undefined
  at::Tensor sink(int64_t layer) const;           // of softmax_sink, (heads) or undefined
  at::Tensor alibi_slopes(int64_t layer) const;   // (heads) or undefined

  // Replaces the weights by those of `directory`, whose shapes must be this model's (a checkpoint to resume from).
  void load_weights(const std::filesystem::path& directory);
  // Names the tokenizer that made the training ids; saved in config.json, compared by lazy generate and lazy eval.
  void set_tokenizer_fingerprint(uint64_t fingerprint);
  // Writes config.json, model.safetensors, generation_config.json into an existing folder. dtype: "fp32" or "bf16".
  void save(const std::filesystem::path& directory, const std::string& dtype = "fp32") const;
  // The tensors that save writes, and the same save from a copy of them: from any thread, while training goes on.
  const std::vector<std::pair<std::string, at::Tensor>>& stored() const;
  void save(const std::filesystem::path& directory, const std::string& dtype,
            const std::vector<std::pair<std::string, at::Tensor>>& tensors) const;

 private:
  struct Impl;
  explicit LanguageModel(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace lazy
