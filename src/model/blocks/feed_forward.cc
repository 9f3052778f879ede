#include "model/blocks/feed_forward.h"

#include "model/blocks/experts_mlp.h"
#include "model/blocks/plain_mlp.h"
#include "model/blocks/swiglu_mlp.h"

namespace lazy {

std::unique_ptr<FeedForward> make_feed_forward(const ModelConfig& config, at::Device device) {
  if (config.mlp.kind == MlpKind::swiglu) return std::make_unique<SwigluMlp>(config, device);
  if (config.mlp.kind == MlpKind::experts) return std::make_unique<ExpertsMlp>(config, device);
  return std::make_unique<PlainMlp>(config, device);
}

}  // namespace lazy
