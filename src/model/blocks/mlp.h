// The feed-forward half of a layer: what each token does alone.
#pragma once
#include <memory>

#include "model/blocks/linear.h"
#include "model/config.h"
#include "model/safetensors.h"

namespace lazy {

class FeedForward {
 public:
  virtual ~FeedForward() = default;

  // x (..., hidden_size) -> the same shape. With `recompute` what lies between is not kept for the backward pass, which
  // computes it again.
  virtual at::Tensor forward(const NormOutput& x, bool recompute) const = 0;

  // fp32, named within the layer, in the checkpoint's order. Matrices start as N(0, config.init_std_of(name)), the
  // others as they were made.
  virtual NamedTensors parameters() const = 0;

  // The products that read some of these, which nothing else does (see model/blocks/shard_hooks.h).
  virtual std::vector<const Linear*> products() const = 0;
};

// The one that config.mlp_kind names.
std::unique_ptr<FeedForward> make_feed_forward(const ModelConfig& config, at::Device device);

}  // namespace lazy
