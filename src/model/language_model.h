// A decoder-only language model. It maps token ids to hidden states, logits or a loss.
//
// Include order of this library's headers. A header includes only headers that are listed before it:
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

// Activation checkpointing: which activations the backward pass recomputes. mlp: the gate and up projections;
// attention: the attention block of each layer; full: whole layers.
enum class Checkpointing { none, mlp, attention, full };
inline constexpr auto kCheckpointings = enum_table<Checkpointing>({{Checkpointing::none, "none"},
                                                                   {Checkpointing::mlp, "mlp"},
                                                                   {Checkpointing::attention, "attention"},
                                                                   {Checkpointing::full, "full"}});
Checkpointing checkpointing_from(const std::string& name);  // throws an Error for an unknown name
constexpr const char* name(Checkpointing value) { return kCheckpointings.name(value); }

class LanguageModel {
 public:
  // Initializes the fp32 master weights from N(0, init_std), with the random seed `seed`.
  LanguageModel(const ModelConfig& config, uint64_t seed);
  // Loads a Hugging Face folder: config.json with model.safetensors (or its sharded index).
  static LanguageModel load(const std::filesystem::path& directory);
  // Loads the weights with a configuration that differs from config.json but has the same tensor shapes, for example
  // another position encoding.
  static LanguageModel load(const std::filesystem::path& directory, ModelConfig config);
  // Opens a model that is larger than memory: the weights stay on disk, and the weights of a layer are on `device` only
  // while that layer computes (model/offloaded_weights.h). Every pass reads all weights again. Inference only, in dtype
  // `compute`; the weights cannot be changed, saved or moved.
  static LanguageModel load_offloaded(const std::filesystem::path& directory, at::Device device,
                                      at::ScalarType compute);
  bool offloaded() const;
  ~LanguageModel();
  LanguageModel(LanguageModel&&) noexcept;
  LanguageModel& operator=(LanguageModel&&) noexcept;

  const ModelConfig& config() const;
  // Returns what the attention operator of a layer needs in addition to queries, keys and values: the normalizer, the
  // window, the offset tau, and the biases of the scores.
  ops::AttentionTerms attention_terms(int64_t layer) const;  // throws an Error if the layer has no attention
  AttentionProjections projections(int64_t layer) const;     // throws an Error if the layer has no attention
  // Compute dtype of activations and matrix products (kFloat or kBFloat16); master weights stay fp32.
  void set_compute_dtype(at::ScalarType dtype);
  at::ScalarType compute_dtype() const;
  // With compute dtype bf16, computes the matrix products of the layers' linear projections and of their gradients in
  // fp8, if all sizes are multiples of 16. Each matrix has one scale, derived from its largest magnitude; inputs and
  // weights use e4m3, gradients e5m2. Embedding, head, norms, the mixers' other operations and experts stay in bf16.
  // Default: off.
  void set_fp8(bool fp8);
  // Rounds the layers' linear projections and the head (and therefore a tied embedding) in place to int8 with one scale
  // per row. Decoding on a CPU reads the int8 matrices. Other passes use the rounded weights in the compute dtype.
  // Embedding, norms, the mixers' own parameters and experts are not changed.
  void set_int8();
  // Frees the fp32 weights of the layers' linear projections, embedding and head; only copies in the compute dtype
  // remain. For inference. A model that is saved afterwards has the reduced precision.
  void hold_compute_dtype();
  // Rounds the layers' linear projections in place. Every later pass also rounds the inputs of these projections and
  // the cached keys and values. Inference only. Embedding, head, norms, the mixers' own parameters and experts are not
  // rounded. If the inputs have one scale per tensor or per channel, this scale is computed from all tokens of the
  // pass. Throws an Error if cache rounding is requested but the model caches no keys and values.
  void quantize(const Quantization& quantization);
  void set_checkpointing(Checkpointing checkpointing);  // for training; default: none
  // Makes gradients bitwise reproducible on a GPU, at some cost. On a CPU they are always reproducible. Default: off.
  void set_deterministic(bool deterministic);
  // Moves the weights. Invalidates the list returned by parameters().
  void to(at::Device device);
  at::Device device() const;

  // Runs a forward pass over the token ids, (batch, length) int64.
  ForwardResult forward(const at::Tensor& ids);
  ForwardResult forward(const at::Tensor& ids, const ForwardOptions& options);
  // Runs forward() for several batches. All batches pass through a layer before the next layer starts, so offloaded
  // weights are read once. Hooks run for all batches of a layer before the next layer. Inference only; a cache, packed
  // sequences and `rows` are not supported. `step` is called with the progress from 0 to 1.
  std::vector<ForwardResult> forward_each(const std::vector<at::Tensor>& batches, const ForwardOptions& options,
                                          const std::function<void(double)>& step = {});
  at::Tensor logits(const at::Tensor& hidden);  // (..., vocab_size) fp32; log-probabilities for an adaptive softmax
  // Returns the mean cross-entropy in nats over all labels other than -100; differentiable. labels: (batch, length),
  // the token that follows each position. The result is NaN if every label is -100, as in PyTorch. The full logits are
  // never materialized.
  at::Tensor loss(const at::Tensor& ids, const at::Tensor& labels);
  // Returns two tensors (batch, length) without a gradient: the fp32 log-probability of each label in nats, and whether
  // the label is the most likely token.
  std::pair<at::Tensor, at::Tensor> log_likelihood(const at::Tensor& ids, const at::Tensor& labels);
  std::pair<at::Tensor, at::Tensor> log_likelihood(const at::Tensor& ids, const at::Tensor& labels,
                                                   const ForwardOptions& options);
  // Computes log_likelihood for packed sequences. labels (N) contains the next token for each of the tokens with the
  // indices `rows` (N); both are int64 on the model's device. The results have shape (N).
  std::pair<at::Tensor, at::Tensor> log_likelihood(const PackedSequences& packed, const at::Tensor& rows,
                                                   const at::Tensor& labels);

  // The trained parameters: fp32 leaf tensors in a fixed order, with their checkpoint names. If the head is tied to the
  // embedding, their common tensor is listed once. Several tensors may be views of one storage (q_proj, k_proj and
  // v_proj are computed as one product), so they must be modified in place.
  const std::vector<std::pair<std::string, at::Tensor>>& parameters() const;
  // The parameters, grouped into units for sharding (model/blocks/shard_hooks.h): the embedding, each layer, the final
  // norm, and the head are one unit each. The hooks run around each use of a unit's weights by this class, including
  // the backward pass of loss(). The weights need to be resident only between the hooks. If hooks are set, tau() and
  // distance_bias() return copies. The hooks must outlive the model or be reset to null.
  const std::vector<ShardUnit>& shard_units() const;
  void set_shard_hooks(ShardHooks* hooks);
  bool decays(const std::string& parameter_name) const;     // whether weight decay applies to the parameter
  bool keep_fp32(const std::string& parameter_name) const;  // whether save() writes it in fp32 even with dtype "bf16"

  at::Tensor distance_bias(int64_t layer) const;  // (heads, distances); undefined in layers without a distance bias
  at::Tensor tau(int64_t layer) const;            // offset of Elastic-Softmax, (heads); undefined for other normalizers
  at::Tensor sink(int64_t layer) const;           // sink logit of each head, (heads); undefined for other normalizers
  at::Tensor alibi_slopes(int64_t layer) const;   // (heads); undefined without ALiBi

  // Returns a model with configuration `config`, which must be the result of to_lazy() for this model; offset_init may
  // differ. The new model has this model's weights and device, tau = offset_init, and zeros in a new distance bias.
  LanguageModel converted(const ModelConfig& config) const;

  // Replaces the weights by the weights in `directory`, which must have the same shapes. Used to resume from a
  // checkpoint.
  void load_weights(const std::filesystem::path& directory);
  // Fingerprint of the training data's tokenizer. It is saved in config.json and checked by `lazy generate` and `lazy
  // eval`.
  void set_tokenizer_fingerprint(uint64_t fingerprint);
  // Writes config.json, model.safetensors and generation_config.json into an existing folder. dtype: "fp32" or "bf16".
  void save(const std::filesystem::path& directory, const std::string& dtype = "fp32") const;
  // stored() returns the tensors that save() writes. The second save() writes `tensors`, a copy of the tensors of
  // stored(), so that another thread can call it while training changes the weights.
  const std::vector<std::pair<std::string, at::Tensor>>& stored() const;
  void save(const std::filesystem::path& directory, const std::string& dtype,
            const std::vector<std::pair<std::string, at::Tensor>>& tensors) const;

 private:
  struct Impl;
  explicit LanguageModel(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace lazy
