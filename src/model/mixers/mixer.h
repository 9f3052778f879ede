// The interface of a layer's token mixer, which is attention or a recurrence over time.
#pragma once
#include <ATen/core/Generator.h>
#include <ATen/core/Tensor.h>

#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "model/blocks/norm.h"
#include "model/config.h"
#include "model/parameters.h"
#include "model/safetensors.h"
#include "ops/attention_weights.h"
#include "ops/fused_decode_layers.h"
#include "ops/round_to_nearest.h"

namespace lazy {

// The weights of a layer's query, key and value projections, (out_features, hidden_size) fp32, and their biases, which
// may be undefined. These tensors share memory with the model's parameters: in-place changes modify the model.
struct AttentionProjections {
  at::Tensor q, k, v, q_bias, k_bias, v_bias;
};

struct ForwardOptions;
struct KVCache;
class Linear;

class Mixer {
 public:
  virtual ~Mixer() = default;

  // True if forward() accepts an input with NormOutput::pending, to which the preceding norm has not been applied yet.
  // The mixer then computes this norm itself (model/blocks/norm.h).
  virtual bool computes_norm(const ForwardOptions&) const { return false; }
  // Maps x (batch, length, hidden_size) to an output of the same shape. If x.pending is true, the result includes the
  // residual stream x.from. `layer` is the index for the cache and the hooks. If `stats` is not null, attention mixers
  // write the attention statistics (3, batch, heads, length) to it; other mixers leave it undefined.
  virtual at::Tensor forward(const NormOutput& x, int64_t layer, const ForwardOptions& options,
                             at::Tensor* stats) const = 0;

  // The fp32 parameters in checkpoint order, with names relative to the layer. Tensors that do not require a gradient
  // are not trained.
  virtual NamedTensors parameters() const = 0;

  // The linear layers of ShardUnit::products (model/blocks/shard_hooks.h): only class Linear reads their weights.
  virtual std::vector<const Linear*> products() const = 0;

  // Writes the initial values of the parameter `name` to `tensor`, which is fp32 on the CPU. Returns false if the
  // parameter keeps the values that the constructor has set. By default, tensors of two or more dimensions are drawn
  // from N(0, init_std).
  virtual bool init_parameter(const std::string& name, at::Tensor& tensor, const ModelConfig& config,
                              at::Generator& generator) const;

  // From this call on, the mixer rounds its keys and values as a quantized KV cache would. Returns false if the mixer
  // does not cache keys and values.
  virtual bool set_cache_rounding(const ops::Rounding&) const { return false; }

  // Writes the mixer's weights and parameters to `layer`, an argument of the fused decode kernel
  // (ops/fused_decode_layers.h). Returns false if that kernel does not support this mixer.
  virtual bool describe(ops::FusedDecodeLayer&, const ForwardOptions&) const { return false; }

  // The attention terms and projections of the layer, or nullopt for mixers other than attention.
  virtual std::optional<ops::AttentionTerms> attention_terms() const { return std::nullopt; }
  virtual std::optional<AttentionProjections> attention_projections() const { return std::nullopt; }
};

// Creates the mixer of type config.mixer_of(layer).
std::unique_ptr<Mixer> make_mixer(const ModelConfig& config, int64_t layer, at::Device device);

// Implementation of MixerKind::make for a mixer class.
template <class T>
std::unique_ptr<Mixer> make_mixer_as(const ModelConfig& config, int64_t layer, at::Device device) {
  return std::make_unique<T>(config, layer, device);
}

// A mixer's parameters, accessible by name and stored in the order of MixerKind::shapes.
class ParameterTable {
 public:
  ParameterTable() = default;
  // Uses the tensors of `made` (for example the parts of linear layers), and allocates zeros for all other tensors of
  // `shapes`.
  ParameterTable(const std::vector<ParameterShape>& shapes, const NamedTensors& made, at::Device device);

  const NamedTensors& all() const { return all_; }
  at::Tensor operator[](const std::string& name) const;  // returns an undefined tensor if the table has no such name
  void fill(const std::string& name, double value) const;

 private:
  NamedTensors all_;
};

// Returns the state tensors of a layer in the cache (cache.states). The list is empty before the first token. Callers
// must replace the tensors, not modify them in place.
std::vector<at::Tensor>& layer_state(KVCache& cache, int64_t layer);

// The recurrent state of one layer, which consists of `count` tensors. The tensors are undefined before the first token
// and without a cache.
class RecurrentState {
 public:
  RecurrentState(const ForwardOptions& options, int64_t layer, size_t count);
  at::Tensor& operator[](size_t n) { return tensors_[n]; }
  void save();  // writes the state to the cache; does nothing without a cache

 private:
  std::vector<at::Tensor> tensors_;
  std::vector<at::Tensor>* cached_;
};

}  // namespace lazy
