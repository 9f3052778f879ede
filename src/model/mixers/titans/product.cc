#include "model/mixers/titans/product.h"

#include <ATen/ATen.h>

#include "ops/rms_norm.h"
#include "ops/swiglu.h"

namespace lazy {

BranchProduct::BranchProduct(const ModelConfig& c, at::Device device)
    : eps_(c.norm_eps), output_(c.hidden_size, {c.hidden_size}, device) {}

void BranchProduct::adopt(const ParameterTable& table) {
  for (const char* name : {"attn.norm.weight", "memory.norm.weight"}) table.fill(name, 1);
  attention_norm_ = table["attn.norm.weight"];
  memory_norm_ = table["memory.norm.weight"];
}

at::Tensor BranchProduct::forward(const at::Tensor& attention, const at::Tensor& memory, at::ScalarType type) const {
  const at::Tensor a = ops::rms_norm(attention, attention_norm_, eps_).to(type),
                   m = ops::rms_norm(memory, memory_norm_, eps_).to(type);
  return output_.forward(ops::swiglu(m, a))[0];
}

}  // namespace lazy
