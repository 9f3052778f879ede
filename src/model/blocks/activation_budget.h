// The device memory that a training step leaves free, for activations that the backward pass would else recompute.
#pragma once
#include <c10/core/Device.h>

#include <atomic>
#include <cstdint>
#include <functional>

namespace lazy {

// Bytes of one device.
struct DeviceMemory {
  int64_t reserved = 0;  // by PyTorch's allocator, cached blocks included
  int64_t free = 0;      // that the allocator could reserve in addition
  int64_t total = 0;
  int64_t retries = 0;  // how often the allocator has returned its cached blocks because memory ran out
};
struct MemoryGauge {
  std::function<DeviceMemory()> memory;
  std::function<int64_t()> allocated;  // bytes of live tensors
};

// The first step recomputes everything. What it has reserved is taken as what every later step needs; of the rest a
// forward pass may spend all but a margin, for blocks that fragment. Bits are those of recomputation. One rank's, so
// nothing is agreed on with other ranks.
class ActivationBudget {
 public:
  explicit ActivationBudget(c10::Device device);  // of a CPU: there is none
  explicit ActivationBudget(MemoryGauge gauge);

  // Fills the budget, which this thread's keep_or_checkpoint() spends until the end of the scope.
  class ForwardPass {
   public:
    explicit ForwardPass(ActivationBudget& budget);
    ~ForwardPass();
    ForwardPass(const ForwardPass&) = delete;
    ForwardPass& operator=(const ForwardPass&) = delete;
  };
  // After an optimizer step, when all that a step allocates has been allocated once.
  void end_step();

  // The budget of this thread's pass; null: none.
  static ActivationBudget* current();
  int64_t allocated() const { return gauge_.allocated(); }
  // What activations of one function have taken at most so far, on any thread; 0: not known.
  int64_t largest() const { return largest_; }
  void note_cost(int64_t bytes);
  // Whether there is room for them, which is then taken.
  bool take(int64_t bytes);

 private:
  void fill();
  void shrink_after_retries(const DeviceMemory& now);

  MemoryGauge gauge_;
  std::atomic<int64_t> largest_ = 0;
  int64_t left_ = 0;
  int64_t needed_ = -1;       // reserved by a step that keeps nothing; -1: not yet known
  int64_t seen_retries_ = 0;  // at the last moment of a step
  bool in_step_ = false;
  double share_ = 1;  // of the memory that should be free, lower after retries
};

}  // namespace lazy
