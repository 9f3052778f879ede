// A mixer's tensors by name, as its kind lists them.
#pragma once
#include <ATen/core/Tensor.h>

#include <string>
#include <vector>

#include "model/mixers/mixer.h"
#include "model/parameter_shapes.h"

namespace lazy {

class ParameterTable {
 public:
  ParameterTable() = default;
  // Those of `made` (parts of linear layers, say) and fresh zeros for the others, in the order of `shapes`.
  ParameterTable(const std::vector<ParameterShape>& shapes, const NamedTensors& made, at::Device device);

  const NamedTensors& all() const { return all_; }
  at::Tensor operator[](const std::string& name) const;  // undefined: not listed
  void fill(const std::string& name, double value) const;

 private:
  NamedTensors all_;
};

}  // namespace lazy
