#include "model/mixers/titans_mal.h"

#include <ATen/ATen.h>

#include "core/error.h"
#include "model/language_model.h"
#include "model/mixers/titans/branch_states.h"

namespace lazy {

TitansMal::TitansMal(const ModelConfig& c, int64_t layer, at::Device device)
    : TitansMixer(c, device),
      memory_output_(c, device),
      attention_(c, layer, device),
      output_(c.hidden_size, {c.hidden_size}, device) {
  NamedTensors made = attention_projections(attention_.qkv);
  for (auto& item : memory_output_.made()) made.push_back(item);
  made.emplace_back("attn.o_proj.weight", output_.parts()[0]);
  list(made, device);
  memory_output_.adopt(table_);
}

std::vector<const Linear*> TitansMal::products() const {
  auto all = memory_.products();
  for (const Linear* product : memory_output_.products()) all.push_back(product);
  all.push_back(&attention_.qkv);
  all.push_back(&output_);
  return all;
}

at::Tensor TitansMal::forward(const NormOutput& x, int64_t layer, const ForwardOptions& options, at::Tensor*) const {
  const at::Tensor persistent = persistent_tokens(table_, config_);
  const WithPersistent all = with_persistent(x.value, persistent, options);
  BranchStates states(options, layer, persistent.size(0));
  const at::Tensor y =
      memory_output_.forward(memory_.forward(all.x, states.memory(), states.seen(), all.packed), all.x);
  const at::Tensor attended = attention_.forward(
      y, {.positions = all.positions, .cu_seqlens = all.packed ? all.packed->cu_seqlens_q : at::Tensor()}, {},
      states.window(), options.deterministic);
  states.keep();
  return output_.forward(all.text(attended))[0];
}

}  // namespace lazy
