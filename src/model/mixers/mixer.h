// A layer's token mixer: attention, or a recurrence over time.
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

namespace lazy {

// A layer's products into queries, keys and values, (out_features, hidden_size) fp32, and their biases; undefined if
// the layer has none. They are the model's own tensors: changes in place change the model.
struct AttentionProjections {
  at::Tensor q, k, v, q_bias, k_bias, v_bias;
};

struct ForwardOptions;
struct KVCache;
class Linear;

class Mixer {
 public:
  virtual ~Mixer() = default;

  // x (batch, length, hidden_size) -> the same shape. `layer` tells the cache and the hook which one this is. `stats`
  // receives attention's statistics, (3, batch, heads, length), when not null; other mixers leave it undefined.
  virtual at::Tensor forward(const NormOutput& x, int64_t layer, const ForwardOptions& options,
                             at::Tensor* stats) const = 0;

  // fp32, named within the layer, in the checkpoint's order. Those that need no gradient are not trained.
  virtual NamedTensors parameters() const = 0;

  // The products that read some of these, which nothing else does (see model/blocks/shard_hooks.h).
  virtual std::vector<const Linear*> products() const = 0;

  // Fills `tensor`, fp32 on the CPU, with the start value of parameter `name`; false: it keeps the value that it was
  // made with. Matrices and larger tensors are N(0, init_std) unless a mixer says otherwise.
  virtual bool init_parameter(const std::string& name, at::Tensor& tensor, const ModelConfig& config,
                              at::Generator& generator) const;

  // Of attention: what it computes besides queries, keys and values, and its products. Empty for other mixers.
  virtual std::optional<ops::AttentionTerms> attention_terms() const { return std::nullopt; }
  virtual std::optional<AttentionProjections> attention_projections() const { return std::nullopt; }
};

// The mixer of a layer: config.mixer_of(layer).
std::unique_ptr<Mixer> make_mixer(const ModelConfig& config, int64_t layer, at::Device device);

// MixerKind::make of a mixer class.
template <class T>
std::unique_ptr<Mixer> make_mixer_as(const ModelConfig& config, int64_t layer, at::Device device) {
  return std::make_unique<T>(config, layer, device);
}

// A mixer's parameters by name, in the order of MixerKind::shapes.
class ParameterTable {
 public:
  ParameterTable() = default;
  // Those of `made` (parts of linear layers, say) and fresh zeros for the others, in the order of `shapes`.
  ParameterTable(const std::vector<ParameterShape>& shapes, const NamedTensors& made, at::Device device);

  const NamedTensors& all() const { return all_; }
  at::Tensor operator[](const std::string& name) const;  // undefined: not listed
  void fill(const std::string& name, double value) const;

 private:
  NamedTensors all_;
};

// The layer's tensors in cache.states, empty before the first token. Replace them; never modify them in place.
std::vector<at::Tensor>& layer_state(KVCache& cache, int64_t layer);

// The recurrent state of one layer, `count` tensors: undefined before the first token and without a cache.
class RecurrentState {
 public:
  RecurrentState(const ForwardOptions& options, int64_t layer, size_t count);
  at::Tensor& operator[](size_t n) { return tensors_[n]; }
  void save();  // into the cache, if there is one

 private:
  std::vector<at::Tensor> tensors_;
  std::vector<at::Tensor>* cached_;
};

}  // namespace lazy
