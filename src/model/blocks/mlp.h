// The MLP of a layer. It is applied to each token separately.
#pragma once
#include <memory>

#include "model/blocks/linear.h"
#include "model/config.h"
#include "model/safetensors.h"
#include "ops/fused_decode_layers.h"

namespace lazy {

class LayerHooks;

class FeedForward {
 public:
  virtual ~FeedForward() = default;

  // True if forward() accepts an input with NormOutput::pending, that is, if it computes the preceding norm itself
  // (model/blocks/norm.h).
  virtual bool computes_norm() const { return false; }
  // Writes the weights of the MLP to `layer`, an argument of the fused decode kernel (ops/fused_decode_layers.h).
  // Returns false if that kernel does not support this MLP.
  virtual bool describe(ops::FusedDecodeLayer&) const { return false; }
  // Maps x (..., hidden_size) to an output of the same shape. If x.pending is true, the result includes the residual
  // stream x.from. With `recompute`, intermediate activations are recomputed in the backward pass instead of saved, and
  // no hooks run. Otherwise `hooks` run at the hook point mlp.inner.
  virtual at::Tensor forward(const NormOutput& x, bool recompute, const LayerHooks& hooks) const = 0;

  // fp32 tensors in checkpoint order, with names relative to the layer. Matrices are initialized from N(0,
  // config.init_std_of(name)); other parameters keep the values set by the constructor.
  virtual NamedTensors parameters() const = 0;

  // Returns the linear layers whose weights are read only by class Linear (see ShardUnit::products in
  // model/blocks/shard_hooks.h).
  virtual std::vector<const Linear*> products() const = 0;
};

// Creates the MLP given by config.mlp.kind.
std::unique_ptr<FeedForward> make_feed_forward(const ModelConfig& config, at::Device device);

}  // namespace lazy
