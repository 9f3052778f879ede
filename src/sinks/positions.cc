#include "sinks/positions.h"

#include <ATen/ATen.h>

#include "core/error.h"
#include "model/probes.h"

namespace lazy::sinks {
namespace {

// What `read` holds in a pass over `ids` in which `place` holds `value`.
at::Tensor computed_from(LanguageModel& model, const at::Tensor& ids, const char* place, const at::Tensor& value,
                         const std::string& read) {
  const at::NoGradGuard no_grad;
  at::Tensor result;
  Probes probes;
  probes.replace(place, [&](const std::string&, const at::Tensor&) { return value; });
  probes.read(read, [&](const std::string&, const at::Tensor& tensor) { result = tensor.to(at::kFloat); });
  ForwardOptions options;
  options.probes = &probes;
  model.forward(ids, options);
  return result;
}

at::Tensor zero_ids(const LanguageModel& model, int64_t batch, int64_t length) {
  return at::zeros({batch, length}, at::TensorOptions().dtype(at::kLong).device(model.device()));
}

}  // namespace

const char* name(EffectivePositions variant) {
  constexpr const char* names[] = {"literal", "normed", "block"};
  return names[static_cast<size_t>(variant)];
}

at::Tensor position_vectors(LanguageModel& model) {
  const ModelConfig& config = model.config();
  if (config.positions != "learned")
    fail("sinks", "effective positions: expected a model with learned positions, found {}", config.positions);
  const at::NoGradGuard no_grad;
  at::Tensor result;
  Probes probes;
  probes.read("embedding.positions",
              [&](const std::string&, const at::Tensor& tensor) { result = tensor.to(at::kFloat).squeeze(0); });
  ForwardOptions options;
  options.probes = &probes;
  model.forward(zero_ids(model, 1, config.max_length), options);
  return result;
}

at::Tensor effective_positions(LanguageModel& model, EffectivePositions variant) {
  const at::Tensor p = position_vectors(model);
  const ModelConfig& config = model.config();
  if (!config.mlp) fail("sinks", "effective positions: expected an MLP in the first layer, found none");
  if (variant == EffectivePositions::block) {
    const std::string after = config.num_layers > 1 ? "layers.1.residual" : "final.residual";
    return computed_from(model, zero_ids(model, p.size(0), 1), "embedding", p.unsqueeze(1), after).squeeze(1);
  }
  const char* place = variant == EffectivePositions::literal ? "layers.0.mlp.input" : "layers.0.middle";
  return p +
         computed_from(model, zero_ids(model, 1, p.size(0)), place, p.unsqueeze(0), "layers.0.mlp.output").squeeze(0);
}

}  // namespace lazy::sinks
