// A decoder-only language model: token ids in, hidden states, logits or a loss out.
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
#include "ops/attention_weights.h"

namespace lazy {

class ShardHooks;
struct ShardUnit;

struct ForwardResult {
  at::Tensor hidden;              // (batch, length, hidden_size) after the final norm; (1, rows, hidden_size) of some
  std::vector<at::Tensor> stats;  // per layer, (3, batch, heads, length) fp32, see lazy::attention; undefined in others
};

// What the backward pass computes again instead of keeping it: nothing dear, the products gate and up of each layer's
// MLP, each layer's attention half, or whole layers.
enum class Checkpointing { none, mlp, attention, full };
Checkpointing checkpointing_from(const std::string& name);  // "none", "mlp", "attention", "full"
const char* name(Checkpointing checkpointing);

// A layer's products into queries, keys and values, (out_features, hidden_size) fp32, and their biases; undefined if
// the layer has none. They are the model's own tensors: changes in place change the model.
struct AttentionProjections {
  at::Tensor q, k, v, q_bias, k_bias, v_bias;
};

class LanguageModel {
 public:
  // Fresh weights, N(0, init_std), from `seed`; fp32 master weights.
  LanguageModel(const ModelConfig& config, uint64_t seed);
  // A Hugging Face folder: config.json + model.safetensors (or its sharded index form).
  static LanguageModel load(const std::filesystem::path& directory);
  // Its weights under another configuration than its config.json's: the same shapes, other positions.
  static LanguageModel load(const std::filesystem::path& directory, ModelConfig config);
  // A model that is larger than the memory: its weights stay in the folder, and those of a layer are on `device` only
  // while it computes, read again for every pass (model/part_loader.h). For inference in the precision `compute`: its
  // weights cannot be changed, saved or moved.
  static LanguageModel load_by_layers(const std::filesystem::path& directory, at::Device device,
                                      at::ScalarType compute);
  bool by_layers() const;
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
  // What forward gives of several batches, a layer at a time: each layer's weights serve all of them before the next
  // one's, so that they are read once. Probes see a layer of every batch before the next layer. No gradient; without a
  // cache, packing and rows. `step`, if there is one, is told how much is done, from 0 to 1.
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

  // The trained ones: fp32 leaves, in a fixed order. Names are the checkpoint's (SPEC section 5). Tied heads appear
  // once. Several may be views of one storage (q_proj, k_proj and v_proj are computed as one product): change them in
  // place.
  const std::vector<std::pair<std::string, at::Tensor>>& parameters() const;
  // The same by parts (model/parts.h). Hooks, if there are any, are told around each use of a part's weights by this
  // class, the backward pass of loss() included: the weights need be there only then. What tau() and distance_bias()
  // give is then a copy. They must live as long as the model, or until null takes their place.
  const std::vector<ShardUnit>& parts() const;
  void set_part_hooks(ShardHooks* hooks);
  bool decays(const std::string& parameter_name) const;     // ParameterShape's
  bool keep_fp32(const std::string& parameter_name) const;  // its `wide`

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
