#include "train/distributed/sharded_gradients.h"

#include <ATen/ATen.h>

#include "core/clock.h"

namespace lazy::train {

void ShardedGradients::take(Bucket& bucket, Bucket::Slot& slot) {
  at::Tensor& gradient = slot.tensor.mutable_grad();
  if (!bucket.flat.defined()) bucket.flat = at::zeros({bucket.padded}, gradient.options());
  bucket.view(slot, bucket.flat).add_(gradient);
  gradient.reset();
  slot.ready = true;
  if (!bucket.complete()) return;
  const Communicator::Waiting waiting(communicator_, "the sum of a layer's gradients");
  begin_sum(bucket);
}

void ShardedGradients::begin_sum(Bucket& bucket) {
  settle();
  arriving_ = at::empty({bucket.padded / communicator_.size()}, bucket.flat.options());
  bucket.handle = communicator_.reduce_scatter(arriving_, bucket.flat);
  under_way_ = &bucket;
}

void ShardedGradients::settle() {
  if (!under_way_) return;
  Bucket& bucket = *std::exchange(under_way_, nullptr);
  const auto begun = Clock::now();
  bucket.handle.wait();
  waited_ += seconds_since(begun);
  if (bucket.share.defined()) {
    bucket.share.add_(arriving_);
  } else {
    bucket.share = arriving_;
  }
  arriving_.reset();
  bucket.flat.reset();
  for (Bucket::Slot& slot : bucket.slots) slot.ready = false;
}

void ShardedGradients::finish() {
  settle();
  for (Bucket& bucket : buckets_) {
    // What got no gradient counts as zero.
    if (bucket.flat.defined()) {
      begin_sum(bucket);
      settle();
    } else if (!bucket.share.defined()) {
      bucket.share =
          at::zeros({bucket.padded / communicator_.size()}, bucket.slots.front().tensor.options().requires_grad(false));
    }
  }
}

}  // namespace lazy::train
