// Units for gathering and freeing sharded or offloaded weights, and the hooks that run around their use in the forward
// and the backward pass.
#pragma once
#include <cstddef>
#include <optional>
#include <vector>

#include "model/blocks/norm.h"
#include "model/safetensors.h"

namespace lazy {

class Linear;

// Parameters that are used together: of the embedding, of each layer, of the final norm, and of the head unless it is
// tied.
struct ShardUnit {
  NamedTensors parameters;              // the trained ones
  std::vector<const Linear*> products;  // the only readers of some of the parameters
};

class ShardHooks {
 public:
  virtual ~ShardHooks() = default;
  // The weights of `unit` are needed from here on, in a forward or a backward pass, then those of `next`, if known.
  virtual void unshard(size_t unit, std::optional<size_t> next) = 0;
  virtual void reshard(size_t unit) = 0;
};

// unshard and reshard around a scope. `hooks` may be null.
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

// Identities on the streams of several batches that run the hooks at their place in the graph; `hooks` may be null.
// Forward: unshard(unit, next), then the unit computes, then reshard(unit). Backward, in reverse: unshard(unit,
// previous) before the unit's backward pass and reshard(unit) after it, when the gradients of all its parameters are
// complete.
void run_pre_forward_hooks(ShardHooks* hooks, size_t unit, std::optional<size_t> next,
                           std::vector<ResidualStream>& streams);
void run_post_forward_hooks(ShardHooks* hooks, size_t unit, std::optional<size_t> previous,
                            std::vector<ResidualStream>& streams);

}  // namespace lazy
