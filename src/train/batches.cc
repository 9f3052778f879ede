#include "train/batches.h"

#include <ATen/ATen.h>

#include <algorithm>

namespace lazy::train {

Batch Batch::to(at::Device device) const {
  if (device.is_cpu()) return *this;
  return {ids.to(device, /*non_blocking=*/true), labels.to(device, /*non_blocking=*/true)};
}

Batch read_batch(const Sequences& sequences, int64_t first, int64_t batch_size, int64_t length, int64_t stride,
                 bool pinned) {
  const auto options = at::TensorOptions(at::kLong).pinned_memory(pinned);
  Batch batch{at::empty({batch_size, length}, options), at::empty({batch_size, length}, options)};
  int64_t* ids = batch.ids.mutable_data_ptr<int64_t>();
  int64_t* labels = batch.labels.mutable_data_ptr<int64_t>();
  for (int64_t b = 0; b < batch_size; ++b, ids += length, labels += length) {
    sequences.read(first + b * stride, ids);
    std::copy(ids + 1, ids + length, labels);
    labels[length - 1] = -100;
  }
  return batch;
}

Batches::Batches(const Sequences& sequences, int64_t first, int64_t batch_size, int64_t length, int64_t prefetch,
                 int64_t nth, bool pinned)
    : ahead_(static_cast<size_t>(prefetch), [=, &sequences](const auto& hand_over) {
        for (int64_t position = first;; position += nth * batch_size) {
          hand_over(read_batch(sequences, position, batch_size, length, 1, pinned));
        }
      }) {}

}  // namespace lazy::train
