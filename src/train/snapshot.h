// A copy of tensors in host memory, taken at one moment of training, so that the originals may change while it is
// written.
#pragma once
#include <ATen/core/Tensor.h>

#include <memory>

#include "model/safetensors.h"

namespace c10 {
struct Event;
}

namespace lazy::train {

class Snapshot {
 public:
  Snapshot();
  ~Snapshot();
  // Tensors of a CPU are copied when this returns. Copies from a GPU are queued on its current stream, into pinned
  // memory: whatever is queued there later, the next update of the weights first, comes after them. The memory is kept
  // for the next snapshot, so nobody may be reading the former one.
  void take(const NamedTensors& tensors);
  // Waits for the copies. From any thread.
  const NamedTensors& tensors() const;

 private:
  NamedTensors copies_;
  std::unique_ptr<c10::Event> copied_;  // none: no tensor came from a GPU
};

}  // namespace lazy::train
