// Memory as a gate (Titans, arXiv 2501.00663): attention within a window, which always sees the persistent tokens,
// times the neural memory of [persistent | text].
#pragma once
#include "model/mixers/titans/product.h"
#include "model/mixers/titans/sliding_attention.h"
#include "model/mixers/titans/titans_mixer.h"

namespace lazy {

class TitansMag final : public TitansMixer {
 public:
  TitansMag(const ModelConfig& config, int64_t layer, at::Device device);
  at::Tensor forward(const NormOutput& x, int64_t layer, const ForwardOptions& options,
                     at::Tensor* stats) const override;
  std::vector<const Linear*> products() const override;

 private:
  SlidingAttention attention_;
  BranchProduct product_;
};

}  // namespace lazy
