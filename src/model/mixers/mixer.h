// A layer's token mixer: what lets a token see the ones before it. Attention, or a recurrence over time.
#pragma once
#include <ATen/core/Generator.h>
#include <ATen/core/Tensor.h>

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "model/blocks/normalized.h"
#include "model/config.h"
#include "model/safetensors.h"

namespace lazy {

struct ForwardOptions;
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

  // The products that read some of these, which nothing else does (see model/parts.h).
  virtual std::vector<const Linear*> products() const = 0;

  // Fills `fresh`, fp32 on the CPU, with the start value of parameter `name`; false: it keeps the value that it was
  // made with. Matrices and larger tensors are N(0, init_std) unless a mixer says otherwise.
  virtual bool init_parameter(const std::string& name, at::Tensor& fresh, const ModelConfig& config,
                              at::Generator& generator) const;
};

// The mixer of a layer: config.mixer_of(layer).
std::unique_ptr<Mixer> make_mixer(const ModelConfig& config, int64_t layer, at::Device device);

}  // namespace lazy
