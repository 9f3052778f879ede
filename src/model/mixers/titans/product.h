// How Titans joins attention and memory (MAC, MAG): each branch normalized with weights of its own, the memory's
// through SiLU, their product projected.
#pragma once
#include "model/blocks/linear.h"
#include "model/mixers/mixer.h"
#include "model/mixers/parameter_table.h"

namespace lazy {

class BranchProduct {
 public:
  BranchProduct(const ModelConfig& config, at::Device device);
  NamedTensors made() const { return {{"o_proj.weight", output_.parts()[0]}}; }
  const Linear& output() const { return output_; }
  void adopt(const ParameterTable& table);
  // Both (batch, length, hidden_size), of any precision -> the same in `type`.
  at::Tensor forward(const at::Tensor& attention, const at::Tensor& memory, at::ScalarType type) const;

 private:
  double eps_;
  Linear output_;
  at::Tensor attention_norm_, memory_norm_;
};

}  // namespace lazy
