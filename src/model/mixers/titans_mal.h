// Memory as a layer (Titans, arXiv 2501.00663): attention within a window over what the neural memory makes of
// [persistent | text].
#pragma once
#include "model/mixers/titans/memory_branch.h"
#include "model/mixers/titans/memory_output.h"
#include "model/mixers/titans/sliding_attention.h"

namespace lazy {

class TitansMal final : public Mixer {
 public:
  TitansMal(const ModelConfig& config, int64_t layer, at::Device device);
  at::Tensor forward(const Normalized& x, int64_t layer, const ForwardOptions& options,
                     at::Tensor* stats) const override;
  NamedTensors parameters() const override { return table_.all(); }
  std::vector<const Linear*> products() const override;
  bool start(const std::string& name, at::Tensor& fresh, const ModelConfig& config,
             at::Generator& generator) const override;

 private:
  ModelConfig config_;
  MemoryBranch memory_;
  MemoryOutput memory_output_;
  SlidingAttention attention_;
  Linear output_;
  ParameterTable table_;
};

}  // namespace lazy
