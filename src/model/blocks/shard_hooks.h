// Hooks for sharded or offloaded parameters. The parameters are grouped into units. The hooks gather (or load) the
// weights of a unit before its use in the forward and the backward pass, and free them afterwards.
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
  std::vector<const Linear*> products;  // the linear layers whose weights only class Linear reads
};

class ShardHooks {
 public:
  virtual ~ShardHooks() = default;
  // Allocates and gathers (or loads) the weights of the ShardUnit with index `unit`. `next` is the index of the unit
  // that is used after it, if known, so that its weights can be prefetched.
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

// run_pre_forward_hooks must be called before a unit computes, and run_post_forward_hooks after it. `hooks` may be
// null. `streams` contains the residual stream of each batch; its values do not change, but autograd nodes are added to
// it, so that hooks also run in the backward pass.
//  Forward pass: unshard(unit, next) before the unit computes, and reshard(unit) after it.
//  Backward pass: unshard(unit, previous) before the unit's backward pass, and reshard(unit) after it, when the
//  gradients of all parameters of the unit are complete.
void run_pre_forward_hooks(ShardHooks* hooks, size_t unit, std::optional<size_t> next,
                           std::vector<ResidualStream>& streams);
void run_post_forward_hooks(ShardHooks* hooks, size_t unit, std::optional<size_t> previous,
                            std::vector<ResidualStream>& streams);

}  // namespace lazy
