// Gradients under full sharding: those of a bucket are summed over the ranks in every backward as soon as the last one
// is there, and only this rank's share of the sum stays, to which later micro-batches add.
#pragma once
#include <vector>

#include "train/distributed/bucket.h"
#include "train/distributed/communicator.h"

namespace lazy::train {

class ShardedGradients {
 public:
  ShardedGradients(std::vector<Bucket>& buckets, Communicator& communicator)
      : buckets_(buckets), communicator_(communicator) {}

  // Takes the parameter's gradient.
  void take(Bucket& bucket, Bucket::Slot& slot);
  // Sums what is left; then every bucket has its share.
  void finish();
  // Waits for the sum that is under way.
  void settle();
  double waited() const { return waited_; }  // seconds, for sums

 private:
  void begin_sum(Bucket& bucket);

  std::vector<Bucket>& buckets_;
  Communicator& communicator_;
  Bucket* under_way_ = nullptr;  // one at a time, beside the one that fills up: two layers' gradients at most
  at::Tensor arriving_;
  double waited_ = 0;
};

}  // namespace lazy::train
