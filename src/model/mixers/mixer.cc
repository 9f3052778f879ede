#include "model/mixers/mixer.h"

#include <ATen/ATen.h>

#include "core/error.h"
#include "model/mixers/attention.h"
#include "model/mixers/delta_net.h"
#include "model/mixers/kinds.h"
#include "model/mixers/mamba2.h"
#include "model/mixers/retnet.h"

namespace lazy {

bool Mixer::start(const std::string&, at::Tensor& fresh, const ModelConfig& config, at::Generator& generator) const {
  if (fresh.dim() < 2) return false;
  fresh.normal_(0, config.init_std, generator);
  return true;
}

NamedTensors make_parameters(const std::vector<ParameterShape>& shapes, at::Device device) {
  NamedTensors out;
  for (const ParameterShape& p : shapes) {
    out.emplace_back(p.name, at::zeros(p.shape, at::TensorOptions().dtype(at::kFloat).device(device)).requires_grad_(p.trained));
  }
  return out;
}

std::unique_ptr<Mixer> make_mixer(const ModelConfig& config, int64_t layer, at::Device device) {
  const std::string name = config.mixer_of(layer);
  if (name == "attention") return std::make_unique<AttentionMixer>(config, layer, device);
  if (name == "retnet") return std::make_unique<RetNetMixer>(config, device);
  if (name == "mamba2") return std::make_unique<Mamba2Mixer>(config, device);
  if (name == "delta_net" || name == "gated_delta_net") return std::make_unique<DeltaNetMixer>(config, device);
  fail("model", "mixer: expected one of this program's, found '{}'", name);
}

}  // namespace lazy
