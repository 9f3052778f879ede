// The neural memory of Titans (arXiv 2501.00663) as a token mixer of its own: LMM.
#pragma once
#include "model/mixers/titans/memory_branch.h"
#include "model/mixers/titans/memory_output.h"

namespace lazy {

class TitansLmm final : public Mixer {
 public:
  TitansLmm(const ModelConfig& config, int64_t layer, at::Device device);
  at::Tensor forward(const Normalized& x, int64_t layer, const ForwardOptions& options,
                     at::Tensor* stats) const override;
  NamedTensors parameters() const override { return table_.all(); }
  std::vector<const Linear*> products() const override;
  bool start(const std::string& name, at::Tensor& fresh, const ModelConfig& config,
             at::Generator& generator) const override;

 private:
  MemoryBranch memory_;
  MemoryOutput output_;
  ParameterTable table_;
};

}  // namespace lazy
