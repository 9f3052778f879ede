// A model by parts, for whoever keeps the weights somewhere else and brings them only while they are used (full
// sharding).
#pragma once
#include <cstddef>
#include <optional>
#include <vector>

#include "model/safetensors.h"

namespace lazy {

class Linear;

// What is used at one time: the embedding, each layer, the final norm, and the head unless it is the embedding.
struct ShardUnit {
  NamedTensors parameters;              // the trained ones
  std::vector<const Linear*> products;  // these read some of them, which nothing else does
};

class ShardHooks {
 public:
  virtual ~ShardHooks() = default;
  // The weights of `part` are read from here on, in a forward or a backward pass; then those of `next`, if known.
  virtual void before(size_t part, std::optional<size_t> next) = 0;
  virtual void after(size_t part) = 0;
};

// Both, around a scope. `hooks` may be null.
class ScopedUnshard {
 public:
  ScopedUnshard(ShardHooks* hooks, size_t part) : hooks_(hooks), part_(part) {
    if (hooks_) hooks_->before(part_, {});
  }
  ~ScopedUnshard() {
    if (hooks_) hooks_->after(part_);
  }
  ScopedUnshard(const ScopedUnshard&) = delete;
  ScopedUnshard& operator=(const ScopedUnshard&) = delete;

 private:
  ShardHooks* hooks_;
  size_t part_;
};

}  // namespace lazy
