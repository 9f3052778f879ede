// A mixture of experts, as gpt-oss has it: a router chooses some experts for each token, and the token's output is the
// mean of theirs by the softmax of the scores of those chosen. An expert is SwiGLU with bounds:
//   gate, up = the even and the odd columns of x W + b;  gate <= limit, |up| <= limit
//   y = (gate sigmoid(alpha gate) (up + 1)) W' + b'
#pragma once
#include "model/blocks/feed_forward.h"

namespace lazy {

class ExpertsMlp : public FeedForward {
 public:
  ExpertsMlp(const ModelConfig& config, at::Device device);

  at::Tensor forward(const NormOutput& x, bool recompute) const override;
  NamedTensors parameters() const override;
  std::vector<const Linear*> products() const override { return {}; }

 private:
  at::Tensor run(const at::Tensor& tokens) const;  // (tokens, hidden_size) -> the same
  at::Tensor expert(int64_t index, const at::Tensor& tokens) const;

  ModelConfig config_;
  at::Tensor router_, router_bias_;                       // (experts, hidden_size), (experts) fp32
  at::Tensor gate_up_, gate_up_bias_, down_, down_bias_;  // (experts, in, out), (experts, out) fp32
};

}  // namespace lazy
