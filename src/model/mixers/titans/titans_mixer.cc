#include "model/mixers/titans/titans_mixer.h"

#include <fmt/format.h>

#include "model/mixers/kinds.h"

namespace lazy {

void TitansMixer::list(NamedTensors made, at::Device device) {
  for (auto& item : memory_.made()) made.push_back(item);
  table_ = ParameterTable(mixer_kind(config_).shapes(config_), made, device);
  memory_.adopt(table_);
}

bool TitansMixer::init_parameter(const std::string& name, at::Tensor& fresh, const ModelConfig& config,
                                 at::Generator& generator) const {
  if (const auto started = MemoryBranch::init_parameter(name, fresh, generator)) return *started;
  return Mixer::init_parameter(name, fresh, config, generator);
}

NamedTensors attention_projections(const Linear& qkv) {
  NamedTensors out;
  for (size_t n = 0; n < 3; ++n) out.emplace_back(fmt::format("attn.{}_proj.weight", "qkv"[n]), qkv.parts()[n]);
  return out;
}

}  // namespace lazy
