#include "distributed/gradient_bucket.h"

#include <ATen/ATen.h>

#include <algorithm>

#include "core/clock.h"

namespace lazy::distributed {

at::Tensor GradientBucket::view(const Slot& slot, const at::Tensor& flat_tensor) const {
  return flat_tensor.narrow(0, slot.begin, slot.numel).view(slot.tensor.sizes());
}

void GradientBucket::allocate() {
  if (flat.defined()) return;
  flat = at::empty({padded}, slots.front().tensor.options().requires_grad(false));
  flat.narrow(0, numel, padded - numel).zero_();
}

void GradientBucket::fill(Slot& slot) {
  if (slot.filled) return;
  allocate();
  const at::Tensor into = view(slot, flat);
  at::Tensor& gradient = slot.tensor.mutable_grad();
  if (gradient.defined()) {
    into.copy_(gradient);
  } else {
    into.zero_();
  }
  gradient = into;
  slot.filled = true;
}

bool GradientBucket::complete() const {
  return std::all_of(slots.begin(), slots.end(), [](const Slot& slot) { return slot.ready; });
}

std::vector<GradientBucket> make_gradient_buckets(const std::vector<at::Tensor>& parameters, int64_t bucket_bytes,
                                                  int64_t ranks) {
  std::vector<GradientBucket> out;
  int64_t limit = 0;
  for (size_t i = parameters.size(); i-- > 0;) {
    const int64_t numel = parameters[i].numel();
    if (out.empty() || (out.back().numel + numel) * 4 > limit) {
      limit = out.empty() ? std::min<int64_t>(bucket_bytes, 1 << 20) : bucket_bytes;
      out.emplace_back();
    }
    GradientBucket& bucket = out.back();
    bucket.slots.push_back({.parameter = i, .begin = bucket.numel, .numel = numel, .tensor = parameters[i]});
    bucket.numel += numel;
  }
  for (GradientBucket& bucket : out) bucket.padded = (bucket.numel + ranks - 1) / ranks * ranks;
  return out;
}

void ShardedGradientReducer::add_gradient(GradientBucket& bucket, GradientBucket::Slot& slot) {
  at::Tensor& gradient = slot.tensor.mutable_grad();
  if (!bucket.flat.defined()) bucket.flat = at::zeros({bucket.padded}, gradient.options());
  bucket.view(slot, bucket.flat).add_(gradient);
  gradient.reset();
  slot.ready = true;
  if (!bucket.complete()) return;
  const Communicator::WaitScope waiting(communicator_, "the gradient reduction of a layer");
  start_reduction(bucket);
}

void ShardedGradientReducer::start_reduction(GradientBucket& bucket) {
  wait_in_flight();
  in_flight_shard_ = at::empty({bucket.padded / communicator_.size()}, bucket.flat.options());
  bucket.work = communicator_.reduce_scatter(in_flight_shard_, bucket.flat);
  in_flight_ = &bucket;
}

void ShardedGradientReducer::wait_in_flight() {
  if (!in_flight_) return;
  GradientBucket& bucket = *std::exchange(in_flight_, nullptr);
  const auto begun = Clock::now();
  bucket.work.wait();
  seconds_waited_ += seconds_since(begun);
  if (bucket.shard.defined()) {
    bucket.shard.add_(in_flight_shard_);
  } else {
    bucket.shard = in_flight_shard_;
  }
  in_flight_shard_.reset();
  bucket.flat.reset();
  for (GradientBucket::Slot& slot : bucket.slots) slot.ready = false;
}

void ShardedGradientReducer::finish() {
  wait_in_flight();
  for (GradientBucket& bucket : buckets_) {
    // A gradient that is missing in an incomplete bucket is treated as zero.
    if (bucket.flat.defined()) {
      start_reduction(bucket);
      wait_in_flight();
    } else if (!bucket.shard.defined()) {
      bucket.shard =
          at::zeros({bucket.padded / communicator_.size()}, bucket.slots.front().tensor.options().requires_grad(false));
    }
  }
}

}  // namespace lazy::distributed
