#include "model/mixers/mixer.h"

#include <ATen/ATen.h>

#include "core/error.h"
#include "model/forward_options.h"
#include "model/kv_cache.h"
#include "model/mixers/attention.h"
#include "model/mixers/registry.h"

namespace lazy {

bool Mixer::init_parameter(const std::string&, at::Tensor& tensor, const ModelConfig& config,
                           at::Generator& generator) const {
  if (tensor.dim() < 2) return false;
  tensor.normal_(0, config.init_std, generator);
  return true;
}

std::unique_ptr<Mixer> make_mixer(const ModelConfig& config, int64_t layer, at::Device device) {
  if (config.mixer_of(layer) == MixerType::attention) return std::make_unique<AttentionMixer>(config, layer, device);
  return mixer_kind(config).make(config, layer, device);
}

ParameterTable::ParameterTable(const std::vector<ParameterShape>& shapes, const NamedTensors& made, at::Device device) {
  const auto options = at::TensorOptions().dtype(at::kFloat).device(device);
  size_t used = 0;
  for (const ParameterShape& shape : shapes) {
    at::Tensor tensor;
    for (const auto& [name, given] : made) {
      if (name == shape.name) tensor = given, ++used;
    }
    if (!tensor.defined()) tensor = at::zeros(shape.shape, options).requires_grad_(shape.trained);
    if (tensor.sizes() != at::IntArrayRef(shape.shape))
      fail_run("model", "{}: the mixer created this tensor with a shape that differs from MixerKind::shapes",
               shape.name);
    all_.emplace_back(shape.name, tensor);
  }
  if (used != made.size()) fail_run("model", "a mixer created a tensor that MixerKind::shapes does not list");
}

at::Tensor ParameterTable::operator[](const std::string& name) const {
  for (const auto& [own, tensor] : all_) {
    if (own == name) return tensor;
  }
  return {};
}

void ParameterTable::fill(const std::string& name, double value) const {
  const at::NoGradGuard guard;
  (*this)[name].fill_(value);
}

std::vector<at::Tensor>& layer_state(KVCache& cache, int64_t layer) {
  const auto index = static_cast<size_t>(layer);
  if (cache.states.size() <= index) cache.states.resize(index + 1);
  if (cache.length == 0) cache.states[index].clear();
  return cache.states[index];
}

RecurrentState::RecurrentState(const ForwardOptions& options, int64_t layer, size_t count)
    : tensors_(count), cached_(options.cache ? &layer_state(*options.cache, layer) : nullptr) {
  if (cached_ && !cached_->empty()) tensors_ = *cached_;
}

void RecurrentState::save() {
  if (cached_) *cached_ = tensors_;
}

}  // namespace lazy
