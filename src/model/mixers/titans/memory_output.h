// What the memory's answers pass where they are a layer's output (LMM, MAL): RMSNorm a head, a gate, a projection.
#pragma once
#include "model/blocks/linear.h"
#include "model/mixers/mixer.h"
#include "model/mixers/parameter_table.h"

namespace lazy {

class MemoryOutput {
 public:
  MemoryOutput(const ModelConfig& config, at::Device device);
  NamedTensors made() const;
  std::vector<const Linear*> products() const;
  void adopt(const ParameterTable& table);
  // answers (batch, length, heads, value_dim) fp32, x what was asked -> like x
  at::Tensor forward(const at::Tensor& answers, const NormOutput& x) const;

 private:
  double eps_;
  Linear gate_, output_;
  at::Tensor norm_;
};

}  // namespace lazy
