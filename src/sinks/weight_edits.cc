#include "sinks/weight_edits.h"

#include <ATen/ATen.h>

namespace lazy::sinks {

void WeightEdits::write(const at::Tensor& weight, const at::Tensor& value) {
  const at::NoGradGuard no_grad;
  before_.emplace_back(weight, weight.detach().clone());
  weight.copy_(value);
}

WeightEdits::~WeightEdits() {
  const at::NoGradGuard no_grad;
  for (auto edit = before_.rbegin(); edit != before_.rend(); ++edit) edit->first.copy_(edit->second);
}

}  // namespace lazy::sinks
