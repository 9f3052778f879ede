// SwiGLU's feed-forward half of a layer (Shazeer 2020, arXiv 2002.05202): down(silu(gate(x)) up(x)), as one node of the
// graph that keeps no more for the backward pass than it must.
#pragma once
#include "model/blocks/feed_forward.h"

namespace lazy {

class SwigluMlp : public FeedForward {
 public:
  SwigluMlp(const ModelConfig& config, at::Device device);

  // Of the products and of what SwiGLU makes of them a CPU keeps all, a GPU the products; with `recompute` neither is
  // kept.
  at::Tensor forward(const NormOutput& x, bool recompute) const override;
  NamedTensors parameters() const override;
  std::vector<const Linear*> products() const override { return {&gate_up_, &down_}; }

 private:
  ModelConfig config_;
  Linear gate_up_, down_;  // parts: gate_proj, up_proj; down_proj
};

}  // namespace lazy
