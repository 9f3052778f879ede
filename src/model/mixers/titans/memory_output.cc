#include "model/mixers/titans/memory_output.h"

#include <ATen/ATen.h>

#include "ops/rms_norm.h"
#include "ops/swiglu.h"

namespace lazy {

MemoryOutput::MemoryOutput(const ModelConfig& c, at::Device device)
    : eps_(c.norm_eps), output_(c.hidden_size, {c.hidden_size}, device) {
  if (c.mix.gate) gate_ = Linear(c.hidden_size, {c.hidden_size}, device);
}

NamedTensors MemoryOutput::made() const {
  NamedTensors out = {{"memory.o_proj.weight", output_.parts()[0]}};
  if (!gate_.parts().empty()) out.emplace_back("memory.g_proj.weight", gate_.parts()[0]);
  return out;
}

std::vector<const Linear*> MemoryOutput::products() const {
  if (gate_.parts().empty()) return {&output_};
  return {&gate_, &output_};
}

void MemoryOutput::adopt(const ParameterTable& table) {
  table.fill("memory.norm.weight", 1);
  norm_ = table["memory.norm.weight"];
}

at::Tensor MemoryOutput::forward(const at::Tensor& answers, const NormOutput& x) const {
  at::Tensor y = ops::rms_norm(answers, norm_, eps_).reshape(x.value.sizes()).to(x.value.scalar_type());
  if (!gate_.parts().empty()) y = ops::swiglu(gate_.forward(x)[0], y);
  return output_.forward(y)[0];
}

}  // namespace lazy
