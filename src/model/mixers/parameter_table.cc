#include "model/mixers/parameter_table.h"

#include <ATen/ATen.h>

#include "core/error.h"

namespace lazy {

ParameterTable::ParameterTable(const std::vector<ParameterShape>& shapes, const NamedTensors& made, at::Device device) {
  const auto options = at::TensorOptions().dtype(at::kFloat).device(device);
  size_t used = 0;
  for (const ParameterShape& shape : shapes) {
    at::Tensor tensor;
    for (const auto& [name, given] : made) {
      if (name == shape.name) tensor = given, ++used;
    }
    if (!tensor.defined()) tensor = at::zeros(shape.shape, options).requires_grad_(shape.trained);
    if (tensor.sizes() != at::IntArrayRef(shape.shape))
      fail_run("model", "{}: made in another shape than it is listed in", shape.name);
    all_.emplace_back(shape.name, tensor);
  }
  if (used != made.size()) fail_run("model", "a mixer made a tensor that its kind does not list");
}

at::Tensor ParameterTable::operator[](const std::string& name) const {
  for (const auto& [own, tensor] : all_) {
    if (own == name) return tensor;
  }
  return {};
}

void ParameterTable::fill(const std::string& name, double value) const {
  const at::NoGradGuard guard;
  (*this)[name].fill_(value);
}

}  // namespace lazy
