#include "train/distributed/bucket.h"

#include <ATen/ATen.h>

#include <algorithm>

namespace lazy::train {

at::Tensor Bucket::view(const Slot& slot, const at::Tensor& whole) const {
  return whole.narrow(0, slot.begin, slot.numel).view(slot.tensor.sizes());
}

void Bucket::allocate() {
  if (flat.defined()) return;
  flat = at::empty({padded}, slots.front().tensor.options().requires_grad(false));
  flat.narrow(0, numel, padded - numel).zero_();
}

void Bucket::fill(Slot& slot) {
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

bool Bucket::complete() const {
  return std::all_of(slots.begin(), slots.end(), [](const Slot& slot) { return slot.ready; });
}

std::vector<Bucket> make_buckets(const std::vector<at::Tensor>& parameters, int64_t bucket_bytes, int64_t ranks) {
  std::vector<Bucket> out;
  int64_t limit = 0;
  for (size_t i = parameters.size(); i-- > 0;) {
    const int64_t numel = parameters[i].numel();
    if (out.empty() || (out.back().numel + numel) * 4 > limit) {
      limit = out.empty() ? std::min<int64_t>(bucket_bytes, 1 << 20) : bucket_bytes;
      out.emplace_back();
    }
    Bucket& bucket = out.back();
    bucket.slots.push_back({.parameter = i, .begin = bucket.numel, .numel = numel, .tensor = parameters[i]});
    bucket.numel += numel;
  }
  for (Bucket& bucket : out) bucket.padded = (bucket.numel + ranks - 1) / ranks * ranks;
  return out;
}

}  // namespace lazy::train
