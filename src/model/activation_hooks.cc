#include "model/activation_hooks.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <fnmatch.h>

#include "core/error.h"
#include "model/config.h"

namespace lazy {
namespace {

std::string full_name(int64_t layer, const char* place) {
  return layer < 0 ? std::string(place) : fmt::format("layers.{}.{}", layer, place);
}

}  // namespace

void ActivationHooks::read(const std::string& glob, std::function<void(const std::string&, const at::Tensor&)> look) {
  replace(glob, [look = std::move(look)](const std::string& name, const at::Tensor& tensor) {
    look(name, tensor);
    return at::Tensor();
  });
}

at::Tensor ActivationHooks::visit(int64_t layer, const char* place, at::Tensor tensor) const {
  const std::string name = full_name(layer, place);
  for (const auto& [glob, action] : actions_) {
    if (!glob_matches(glob, name)) continue;
    const at::Tensor other = action(name, tensor);
    if (!other.defined()) continue;
    if (other.sizes() != tensor.sizes()) {
      fail("probes", "{}: the replacement must have shape [{}], found [{}]", name, fmt::join(tensor.sizes(), ", "),
           fmt::join(other.sizes(), ", "));
    }
    tensor = other.to(tensor.options());
  }
  return tensor;
}

bool ActivationHooks::wants(int64_t layer, const char* place) const {
  const std::string name = full_name(layer, place);
  for (const auto& [glob, action] : actions_) {
    if (glob_matches(glob, name)) return true;
  }
  return false;
}

bool glob_matches(const std::string& glob, const std::string& name) {
  return fnmatch(glob.c_str(), name.c_str(), 0) == 0;
}

std::vector<std::string> hook_point_names(const ModelConfig& config) {
  std::vector<std::string> names{"embedding.tokens"};
  if (config.positions.kind == PositionKind::learned || config.positions.kind == PositionKind::sinusoidal)
    names.emplace_back("embedding.positions");
  names.push_back("embedding");
  for (int64_t layer = 0; layer < config.num_layers; ++layer) {
    const auto add = [&](const char* place) { names.push_back(full_name(layer, place)); };
    add("residual");
    if (config.mixer_of(layer) == MixerType::attention) {
      add("attention.input");
      for (const char* place : {"attention.q.projected", "attention.k.projected", "attention.v"}) add(place);
      if (config.attention.qk_norm) {
        for (const char* place : {"attention.q.normed", "attention.k.normed"}) add(place);
      }
      for (const char* place : {"attention.q", "attention.k", "attention.scores", "attention.weights"}) add(place);
      if (config.attention.gate != GateKind::none) add("attention.gate");
      for (const char* place : {"attention.heads", "attention.output"}) add(place);
    } else {
      for (const char* place : {"mixer.input", "mixer.output"}) add(place);
    }
    if (!config.mlp.enabled) continue;
    for (const char* place : {"middle", "mlp.input"}) add(place);
    if (config.mlp.kind != MlpKind::experts) add("mlp.inner");
    add("mlp.output");
  }
  names.insert(names.end(), {"final.residual", "final.hidden"});
  return names;
}

}  // namespace lazy
