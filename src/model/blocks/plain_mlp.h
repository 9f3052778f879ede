// Two matrices with a function between them, and perhaps biases: down(f(up(x))). The feed-forward half of GPT-2, BLOOM
// and Transformer-XL.
#pragma once
#include "model/blocks/feed_forward.h"

namespace lazy {

class PlainMlp : public FeedForward {
 public:
  PlainMlp(const ModelConfig& config, at::Device device);

  at::Tensor forward(const NormOutput& x, bool recompute) const override;
  NamedTensors parameters() const override;
  std::vector<const Linear*> products() const override { return {&up_, &down_}; }

 private:
  at::Tensor run(const at::Tensor& x) const;

  ModelConfig config_;
  Linear up_, down_;
  at::Tensor up_bias_, down_bias_;  // fp32, undefined when there are none
};

}  // namespace lazy
