#include "train/batches.h"

#include <ATen/ATen.h>

#include <algorithm>

namespace lazy::train {

Batch Batch::to(at::Device device) const {
  if (device.is_cpu()) return *this;
  return {ids.to(device, /*non_blocking=*/true), labels.to(device, /*non_blocking=*/true)};
}

Batch read_batch(const Sequences& sequences, int64_t first, int64_t batch_size, int64_t length, int64_t stride, bool pinned) {
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

Batches::Batches(const Sequences& sequences, int64_t first, int64_t batch_size, int64_t length, int64_t ahead,
                 int64_t nth, bool pinned)
    : sequences_(sequences),
      position_(first),
      batch_size_(batch_size),
      length_(length),
      nth_(nth),
      ahead_(static_cast<size_t>(ahead)),
      pinned_(pinned),
      thread_([this] { read_ahead(); }) {}

Batches::~Batches() {
  {
    std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  changed_.notify_all();
  thread_.join();
}

Batch Batches::next() {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [&] { return !ready_.empty() || error_; });
  if (ready_.empty()) std::rethrow_exception(error_);
  Batch batch = std::move(ready_.front());
  ready_.pop_front();
  lock.unlock();
  changed_.notify_all();
  return batch;
}

void Batches::read_ahead() {
  try {
    while (true) {
      {
        std::unique_lock lock(mutex_);
        changed_.wait(lock, [&] { return stopping_ || ready_.size() < ahead_; });
        if (stopping_) return;
      }
      Batch batch = read_batch(sequences_, position_, batch_size_, length_, 1, pinned_);
      position_ += nth_ * batch_size_;
      {
        std::lock_guard lock(mutex_);
        ready_.push_back(std::move(batch));
      }
      changed_.notify_all();
    }
  } catch (...) {
    {
      std::lock_guard lock(mutex_);
      error_ = std::current_exception();
    }
    changed_.notify_all();
  }
}

}  // namespace lazy::train
