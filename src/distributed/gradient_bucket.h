// Gradients of several parameters in one flat fp32 tensor, which is reduced over the ranks in one message.
#pragma once
#include <ATen/core/Tensor.h>

#include <vector>

#include "distributed/communicator.h"

namespace lazy::distributed {

struct GradientBucket {
  struct Slot {
    size_t parameter = 0;  // index into the list of parameters
    int64_t begin = 0, numel = 0;
    at::Tensor tensor;    // the parameter
    bool filled = false;  // `flat` holds a gradient of this step
    bool ready = false;   // the gradient is complete
  };
  std::vector<Slot> slots;
  int64_t numel = 0;   // of all slots
  int64_t padded = 0;  // numel rounded up to a multiple of the world size
  at::Tensor flat;     // gradients; the slots' grad() are views of it
  at::Tensor shard;    // where gradients are sharded: this rank's part of the reduced gradients
  Communicator::Work work;

  // The slot's part of a flat tensor in the bucket's layout, in the parameter's shape.
  at::Tensor view(const Slot& slot, const at::Tensor& flat_tensor) const;
  void allocate();
  // Copies the parameter's gradient into `flat` and makes grad() a view of it; zeros where there is none. Does nothing
  // if it is a view already.
  void fill(Slot& slot);
  bool complete() const;
};

// Parameters in reverse order, because backward produces the gradients of the last layers first. The first bucket is
// small, so that communication starts early.
std::vector<GradientBucket> make_gradient_buckets(const std::vector<at::Tensor>& parameters, int64_t bucket_bytes,
                                                  int64_t ranks);

// Gradients under full sharding. A bucket is reduce-scattered in every backward pass as soon as it is complete, and
// only this rank's shard of the sum is kept; later micro-batches add to it.
class ShardedGradientReducer {
 public:
  ShardedGradientReducer(std::vector<GradientBucket>& buckets, Communicator& communicator)
      : buckets_(buckets), communicator_(communicator) {}

  // Moves the parameter's gradient into the bucket.
  void add_gradient(GradientBucket& bucket, GradientBucket::Slot& slot);
  // Reduces incomplete buckets; afterwards every bucket has its shard.
  void finish();
  // Waits for the reduction in flight.
  void wait_in_flight();
  double seconds_waited() const { return seconds_waited_; }

 private:
  void start_reduction(GradientBucket& bucket);

  std::vector<GradientBucket>& buckets_;
  Communicator& communicator_;
  // At most one bucket is in flight while the next one fills: the gradients of two layers at most exist at once.
  GradientBucket* in_flight_ = nullptr;
  at::Tensor in_flight_shard_;
  double seconds_waited_ = 0;
};

}  // namespace lazy::distributed
