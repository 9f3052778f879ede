// The feed-forward half of a layer, which is applied to each token separately.
#pragma once
#include <memory>

#include "model/blocks/linear.h"
#include "model/config.h"
#include "model/safetensors.h"
#include "ops/step_layers.h"

namespace lazy {

class LayerHooks;

class FeedForward {
 public:
  virtual ~FeedForward() = default;

  // Whether forward() takes a pending norm (model/blocks/norm.h).
  virtual bool computes_norm() const { return false; }
  // The part of a layer that one kernel computes with the others (ops/step_layers.h). Returns false where there is
  // none.
  virtual bool describe(ops::StepLayer&) const { return false; }
  // x (..., hidden_size) -> the same shape, of a pending norm with the stream added. With `recompute` intermediate
  // activations are recomputed in the backward pass instead of saved; then there are no hooks. The hook point is
  // mlp.inner.
  virtual at::Tensor forward(const NormOutput& x, bool recompute, const LayerHooks& hooks) const = 0;

  // fp32, named relative to the layer, in checkpoint order. Matrices are initialized from N(0,
  // config.init_std_of(name)); other parameters keep the values set by the constructor.
  virtual NamedTensors parameters() const = 0;

  // Linear layers that are the only readers of their parameters (see model/blocks/shard_hooks.h).
  virtual std::vector<const Linear*> products() const = 0;
};

// Creates the MLP given by config.mlp.kind.
std::unique_ptr<FeedForward> make_feed_forward(const ModelConfig& config, at::Device device);

}  // namespace lazy
