// The interface of a layer's token mixer: attention, or a recurrence over time.
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
#include "ops/round_to_nearest.h"
#include "ops/step_layers.h"

namespace lazy {

// The query, key and value projections of a layer, (out_features, hidden_size) fp32, and their biases, which may be
// undefined. They alias the model's parameters: in-place changes modify the model.
struct AttentionProjections {
  at::Tensor q, k, v, q_bias, k_bias, v_bias;
};

struct ForwardOptions;
struct KVCache;
class Linear;

class Mixer {
 public:
  virtual ~Mixer() = default;

  // Whether forward() takes a pending norm (model/blocks/norm.h).
  virtual bool computes_norm(const ForwardOptions&) const { return false; }
  // x (batch, length, hidden_size) -> the same shape, of a pending norm with the stream added. `layer` is the index for
  // the cache and the hooks. If not null, `stats` receives the attention statistics, (3, batch, heads, length); other
  // mixers leave it undefined.
  virtual at::Tensor forward(const NormOutput& x, int64_t layer, const ForwardOptions& options,
                             at::Tensor* stats) const = 0;

  // fp32, named relative to the layer, in checkpoint order. Tensors that do not require a gradient are not trained.
  virtual NamedTensors parameters() const = 0;

  // Linear layers that are the only readers of their parameters (see model/blocks/shard_hooks.h).
  virtual std::vector<const Linear*> products() const = 0;

  // Initializes `tensor`, fp32 on the CPU, for parameter `name`. Returns false to keep its current value. By default
  // tensors of two or more dimensions are drawn from N(0, init_std).
  virtual bool init_parameter(const std::string& name, at::Tensor& tensor, const ModelConfig& config,
                              at::Generator& generator) const;

  // From now on keys and values are rounded as the cache would hold them. Returns false for a mixer without any.
  virtual bool set_cache_rounding(const ops::Rounding&) const { return false; }

  // The mixer's part of a layer that one kernel computes with the others (ops/step_layers.h). Returns false where it
  // has none.
  virtual bool describe(ops::StepLayer&, const ForwardOptions&) const { return false; }

  // The attention terms and projections of the layer; empty for other mixers.
  virtual std::optional<ops::AttentionTerms> attention_terms() const { return std::nullopt; }
  virtual std::optional<AttentionProjections> attention_projections() const { return std::nullopt; }
};

// Creates the mixer config.mixer_of(layer).
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
  // Takes the tensors of `made` (for example parts of linear layers) and allocates zeros for the others, in the order
  // of `shapes`.
  ParameterTable(const std::vector<ParameterShape>& shapes, const NamedTensors& made, at::Device device);

  const NamedTensors& all() const { return all_; }
  at::Tensor operator[](const std::string& name) const;  // undefined if not listed
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
  void save();  // writes it back to the cache, if any

 private:
  std::vector<at::Tensor> tensors_;
  std::vector<at::Tensor>* cached_;
};

}  // namespace lazy
