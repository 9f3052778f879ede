// Memory as context (Titans, arXiv 2501.00663), segment by segment: a segment attends to the persistent tokens, to what
// the memory of the segments before recalls of it, and to itself; the memory then learns from what attention made.
#pragma once
#include "model/mixers/titans/product.h"
#include "model/mixers/titans/titans_mixer.h"

namespace lazy {

class TitansMac final : public TitansMixer {
 public:
  TitansMac(const ModelConfig& config, int64_t layer, at::Device device);
  at::Tensor forward(const NormOutput& x, int64_t layer, const ForwardOptions& options,
                     at::Tensor* stats) const override;
  std::vector<const Linear*> products() const override;

 private:
  Linear attention_;  // parts: q_proj, k_proj, v_proj
  BranchProduct product_;
};

}  // namespace lazy
