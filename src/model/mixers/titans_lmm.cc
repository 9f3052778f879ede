#include "model/mixers/titans_lmm.h"

#include <ATen/ATen.h>

#include "model/language_model.h"
#include "model/mixers/kinds.h"
#include "model/mixers/layer_state.h"

namespace lazy {

TitansLmm::TitansLmm(const ModelConfig& c, int64_t, at::Device device) : memory_(c, device), output_(c, device) {
  NamedTensors made = memory_.made();
  for (auto& item : output_.made()) made.push_back(item);
  table_ = ParameterTable(mixer_kind(c).shapes(c), made, device);
  memory_.adopt(table_);
  output_.adopt(table_);
}

std::vector<const Linear*> TitansLmm::products() const {
  auto all = memory_.products();
  for (const Linear* product : output_.products()) all.push_back(product);
  return all;
}

bool TitansLmm::start(const std::string& name, at::Tensor& fresh, const ModelConfig& config,
                      at::Generator& generator) const {
  return MemoryBranch::start(name, fresh, generator).value_or(Mixer::start(name, fresh, config, generator));
}

at::Tensor TitansLmm::forward(const Normalized& x, int64_t layer, const ForwardOptions& options, at::Tensor*) const {
  std::vector<at::Tensor>* state = options.cache ? &layer_state(*options.cache, layer) : nullptr;
  const at::Tensor cu_seqlens = options.packed ? options.packed->cu_seqlens_q.to(x.value.device()) : at::Tensor();
  return output_.forward(memory_.forward(x, state, options.cache ? options.cache->length : 0, cu_seqlens), x);
}

}  // namespace lazy
