// A budget of device memory: how many bytes a training step may use to keep activations for the backward pass instead
// of recomputing them.
#pragma once
#include <c10/core/Device.h>

#include <atomic>
#include <cstdint>
#include <functional>

namespace lazy {

// Memory statistics of one device, in bytes.
struct DeviceMemory {
  int64_t reserved = 0;  // bytes that PyTorch's allocator has reserved, including cached blocks
  int64_t free = 0;      // bytes that the allocator can still reserve
  int64_t total = 0;
  int64_t retries = 0;  // number of times the allocator released its cached blocks because memory ran out
};
// Callbacks that measure device memory; tests replace them.
struct MemoryGauge {
  std::function<DeviceMemory()> memory;
  std::function<int64_t()> allocated;  // bytes that all existing tensors occupy
};

// Decides which activations a training step keeps in memory and which ones it recomputes. The first training step
// recomputes all activations. The memory that the allocator has reserved after that step is the amount that every later
// step needs as well. Later forward passes may use the remaining device memory for activations, except for a margin
// that allows for fragmentation. Kept and recomputed activations give bitwise equal results. Every rank has a separate
// budget and does not coordinate it with other ranks.
class ActivationBudget {
 public:
  explicit ActivationBudget(c10::Device device);  // on a CPU, the budget is always 0 and activations are not kept
  explicit ActivationBudget(MemoryGauge gauge);

  // During the lifetime of this object, calls of keep_or_checkpoint() on this thread use the budget. The constructor
  // resets the budget to the memory that is available at that time.
  class ForwardPass {
   public:
    explicit ForwardPass(ActivationBudget& budget);
    ~ForwardPass();
    ForwardPass(const ForwardPass&) = delete;
    ForwardPass& operator=(const ForwardPass&) = delete;
  };
  // Must be called after each optimizer step. The first call measures the reserved memory: at this point, every
  // allocation of a training step has been made at least once.
  void end_step();

  // The budget of the current thread's forward pass; null outside of a ForwardPass.
  static ActivationBudget* current();
  int64_t allocated() const { return gauge_.allocated(); }
  // The largest number of bytes that the activations of one checkpointed function have occupied so far, on any thread;
  // 0 if no function has been measured yet.
  int64_t largest() const { return largest_; }
  void note_cost(int64_t bytes);
  // If at least `bytes` bytes of the budget are left, subtracts `bytes` and returns true; otherwise returns false.
  bool take(int64_t bytes);

 private:
  void fill();
  void shrink_after_retries(const DeviceMemory& now);

  MemoryGauge gauge_;
  std::atomic<int64_t> largest_ = 0;
  int64_t left_ = 0;
  int64_t needed_ = -1;       // bytes that the allocator reserves if a step recomputes everything; -1: not yet measured
  int64_t seen_retries_ = 0;  // value of DeviceMemory::retries at the last call of fill()
  bool in_step_ = false;
  double share_ = 1;  // fraction of the free memory that may be used; reduced after allocator retries
};

}  // namespace lazy
