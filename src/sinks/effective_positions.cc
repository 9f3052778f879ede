#include "sinks/effective_positions.h"

#include <ATen/ATen.h>

#include "core/error.h"
#include "model/activation_hooks.h"
#include "model/forward_options.h"

namespace lazy::sinks {

at::Tensor effective_positions(LanguageModel& model) {
  const ModelConfig& config = model.config();
  if (config.positions.kind != PositionKind::learned)
    fail("sinks", "effective positions: expected a model with learned positions, found {}",
         name(config.positions.kind));
  if (!config.mlp.enabled) fail("sinks", "effective positions: expected an MLP in the first layer, found none");
  const at::NoGradGuard no_grad;
  at::Tensor positions, added;
  ActivationHooks probes;
  probes.read("embedding.positions", [&](const std::string&, const at::Tensor& tensor) {
    positions = tensor.to(at::kFloat);  // (1, positions, hidden_size)
  });
  probes.replace("layers.0.mlp.input", [&](const std::string&, const at::Tensor&) { return positions; });
  probes.read("layers.0.mlp.output",
              [&](const std::string&, const at::Tensor& tensor) { added = tensor.to(at::kFloat); });
  ForwardOptions options;
  options.activation_hooks = &probes;
  model.forward(at::zeros({1, config.max_length}, at::TensorOptions().dtype(at::kLong).device(model.device())),
                options);
  return (positions + added).squeeze(0);
}

}  // namespace lazy::sinks
