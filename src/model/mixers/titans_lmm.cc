#include "model/mixers/titans_lmm.h"

#include <ATen/ATen.h>

#include "model/language_model.h"
#include "model/mixers/layer_state.h"

namespace lazy {

TitansLmm::TitansLmm(const ModelConfig& c, int64_t, at::Device device) : TitansMixer(c, device), output_(c, device) {
  list(output_.made(), device);
  output_.adopt(table_);
}

std::vector<const Linear*> TitansLmm::products() const {
  auto all = memory_.products();
  for (const Linear* product : output_.products()) all.push_back(product);
  return all;
}

at::Tensor TitansLmm::forward(const NormOutput& x, int64_t layer, const ForwardOptions& options, at::Tensor*) const {
  std::vector<at::Tensor>* state = options.cache ? &layer_state(*options.cache, layer) : nullptr;
  return output_.forward(memory_.forward(x, state, options.cache ? options.cache->length : 0, options.packed), x);
}

}  // namespace lazy
