// The neural memory of Titans (arXiv 2501.00663) as a token mixer of its own: LMM.
#pragma once
#include "model/mixers/titans/memory_output.h"
#include "model/mixers/titans/titans_mixer.h"

namespace lazy {

class TitansLmm final : public TitansMixer {
 public:
  TitansLmm(const ModelConfig& config, int64_t layer, at::Device device);
  at::Tensor forward(const NormOutput& x, int64_t layer, const ForwardOptions& options,
                     at::Tensor* stats) const override;
  std::vector<const Linear*> products() const override;

 private:
  MemoryOutput output_;
};

}  // namespace lazy
