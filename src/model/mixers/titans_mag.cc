#include "model/mixers/titans_mag.h"

#include <ATen/ATen.h>

#include "core/error.h"
#include "model/language_model.h"
#include "model/mixers/titans/branch_states.h"

namespace lazy {

TitansMag::TitansMag(const ModelConfig& c, int64_t layer, at::Device device)
    : TitansMixer(c, device), attention_(c, layer, device), product_(c, device) {
  NamedTensors made = attention_projections(attention_.qkv);
  for (auto& item : product_.made()) made.push_back(item);
  list(made, device);
  product_.adopt(table_);
}

std::vector<const Linear*> TitansMag::products() const {
  auto all = memory_.products();
  all.push_back(&attention_.qkv);
  all.push_back(&product_.output());
  return all;
}

at::Tensor TitansMag::forward(const NormOutput& x, int64_t layer, const ForwardOptions& options, at::Tensor*) const {
  const at::Tensor persistent = persistent_tokens(table_, config_);
  const WithPersistent all = with_persistent(x.value, persistent, options);
  BranchStates states(options, layer, persistent.size(0));
  const at::Tensor memory = all.text(memory_.forward(all.x, states.memory(), states.seen(), all.packed));
  const at::Tensor attended =
      attention_.forward(x,
                         {.positions = all.text(all.positions.unsqueeze(0)).squeeze(0),
                          .cu_seqlens = options.packed ? options.packed->cu_seqlens_q : at::Tensor()},
                         persistent, states.window(), options.deterministic);
  states.keep();
  return product_.forward(attended, memory.reshape(x.value.sizes()), x.value.scalar_type());
}

}  // namespace lazy
