// What the four ways of Titans to use its memory share: the memory, the table of parameters, their start values.
#pragma once
#include "model/mixers/titans/memory_branch.h"

namespace lazy {

class TitansMixer : public Mixer {
 public:
  NamedTensors parameters() const override { return table_.all(); }
  bool init_parameter(const std::string& name, at::Tensor& fresh, const ModelConfig& config,
                      at::Generator& generator) const override;

 protected:
  TitansMixer(const ModelConfig& config, at::Device device) : config_(config), memory_(config, device) {}
  // Lists all parameters: the memory's, `made` and fresh ones.
  void list(NamedTensors made, at::Device device);

  ModelConfig config_;
  MemoryBranch memory_;
  ParameterTable table_;
};

// q_proj, k_proj and v_proj of attention, as a list for the table.
NamedTensors attention_projections(const Linear& qkv);

}  // namespace lazy
