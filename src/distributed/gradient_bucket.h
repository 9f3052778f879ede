// The gradients of several parameters in one flat fp32 tensor, which is reduced over the ranks in one message.
#pragma once
#include <ATen/core/Tensor.h>

#include <vector>

#include "distributed/communicator.h"

namespace lazy::distributed {

struct GradientBucket {
  struct Slot {
    size_t parameter = 0;  // index into the list of all parameters
    int64_t begin = 0, numel = 0;
    at::Tensor tensor;    // the parameter itself, not its gradient
    bool filled = false;  // whether `flat` contains a gradient of this step
    bool ready = false;   // whether the gradient may be reduced; a bucket is reduced when all its slots are ready
  };
  std::vector<Slot> slots;
  int64_t numel = 0;   // sum of Slot::numel over all slots
  int64_t padded = 0;  // numel rounded up to a multiple of the world size
  at::Tensor flat;     // gradients of all slots; grad() of each slot's parameter is a view of it
  at::Tensor shard;    // this rank's part of the reduced gradients, if gradients are sharded
  Communicator::Work work;

  // Returns the part of `flat_tensor` that belongs to the slot, in the shape of the parameter. `flat_tensor` has the
  // layout of the bucket.
  at::Tensor view(const Slot& slot, const at::Tensor& flat_tensor) const;
  void allocate();
  // Copies the gradient of the parameter into `flat`, or zeros if the gradient is missing, and replaces grad() by a
  // view of it. Does nothing if grad() already is this view.
  void fill(Slot& slot);
  bool complete() const;
};

// Assigns parameters to buckets in reverse order, because the backward pass computes the gradients of the last layers
// first. The first bucket is small, so that communication starts early.
std::vector<GradientBucket> make_gradient_buckets(const std::vector<at::Tensor>& parameters, int64_t bucket_bytes,
                                                  int64_t ranks);

// Reduces gradients under full sharding. In every backward pass a bucket is reduce-scattered when it is complete. Only
// this rank's shard of the sum is stored, and later micro-batches add to it.
class ShardedGradientReducer {
 public:
  ShardedGradientReducer(std::vector<GradientBucket>& buckets, Communicator& communicator)
      : buckets_(buckets), communicator_(communicator) {}

  // Adds grad() of the slot's parameter to the bucket and then releases grad(). If the bucket is now complete, its
  // reduction starts.
  void add_gradient(GradientBucket& bucket, GradientBucket::Slot& slot);
  // Reduces incomplete buckets. Afterwards every bucket contains its reduced shard.
  void finish();
  // Waits for the reduction that is in flight.
  void wait_in_flight();
  double seconds_waited() const { return seconds_waited_; }

 private:
  void start_reduction(GradientBucket& bucket);

  std::vector<GradientBucket>& buckets_;
  Communicator& communicator_;
  // At most one bucket is in flight while the next one is filled, so gradients of at most two layers exist at a time.
  GradientBucket* in_flight_ = nullptr;
  at::Tensor in_flight_shard_;
  double seconds_waited_ = 0;
};

}  // namespace lazy::distributed
