// Parameter shards: units of parameters that are gathered (or loaded) together, and the hooks that gather and free them
// around their use in the forward and the backward pass.
#pragma once
#include <cstddef>
#include <optional>
#include <vector>

#include "model/blocks/norm.h"
#include "model/safetensors.h"

namespace lazy {

class Linear;

// Parameters that are gathered and freed together. The embedding, each layer, the final norm and an untied head are
// separate units.
struct ShardUnit {
  NamedTensors parameters;              // trained parameters only
  std::vector<const Linear*> products;  // linear layers that are the only readers of some of the parameters
};

class ShardHooks {
 public:
  virtual ~ShardHooks() = default;
  // Makes the weights of `unit` resident. `next` is the unit used after it, if known, for prefetching.
  virtual void unshard(size_t unit, std::optional<size_t> next) = 0;
  virtual void reshard(size_t unit) = 0;
};

// Calls unshard in the constructor and reshard in the destructor. `hooks` may be null.
class ScopedUnshard {
 public:
  ScopedUnshard(ShardHooks* hooks, size_t unit) : hooks_(hooks), unit_(unit) {
    if (hooks_) hooks_->unshard(unit_, {});
  }
  ~ScopedUnshard() {
    if (hooks_) hooks_->reshard(unit_);
  }
  ScopedUnshard(const ScopedUnshard&) = delete;
  ScopedUnshard& operator=(const ScopedUnshard&) = delete;

 private:
  ShardHooks* hooks_;
  size_t unit_;
};

// Runs the hooks at this point of the autograd graph and returns the streams of all batches unchanged; `hooks` may be
// null. Forward pass: unshard(unit, next) before the unit computes, and reshard(unit) after it. Backward pass, in
// reverse order: unshard(unit, previous) before the unit's backward pass, and reshard(unit) after it, when the
// gradients of all its parameters are complete.
void run_pre_forward_hooks(ShardHooks* hooks, size_t unit, std::optional<size_t> next,
                           std::vector<ResidualStream>& streams);
void run_post_forward_hooks(ShardHooks* hooks, size_t unit, std::optional<size_t> previous,
                            std::vector<ResidualStream>& streams);

}  // namespace lazy
