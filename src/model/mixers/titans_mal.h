// Memory as a layer (Titans, arXiv 2501.00663): attention within a window over what the neural memory makes of
// [persistent | text].
#pragma once
#include "model/mixers/titans/memory_output.h"
#include "model/mixers/titans/sliding_attention.h"
#include "model/mixers/titans/titans_mixer.h"

namespace lazy {

class TitansMal final : public TitansMixer {
 public:
  TitansMal(const ModelConfig& config, int64_t layer, at::Device device);
  at::Tensor forward(const NormOutput& x, int64_t layer, const ForwardOptions& options,
                     at::Tensor* stats) const override;
  std::vector<const Linear*> products() const override;

 private:
  MemoryOutput memory_output_;
  SlidingAttention attention_;
  Linear output_;
};

}  // namespace lazy
