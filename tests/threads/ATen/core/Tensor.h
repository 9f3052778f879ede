// Replaces LibTorch's tensor in tests of the training program's reading thread (train/batches.cc) under
// ThreadSanitizer. Otherwise these tests would need an instrumented LibTorch. As with a LibTorch tensor, copies share
// the memory of the ids.
#pragma once
#include <cstdint>
#include <initializer_list>
#include <memory>
#include <vector>

namespace at {

enum ScalarType { kLong };

struct Device {
  bool is_cpu() const { return true; }
};

struct TensorOptions {
  explicit TensorOptions(ScalarType) {}
  TensorOptions pinned_memory(bool) const { return *this; }
};

class Tensor {
 public:
  Tensor() = default;
  explicit Tensor(size_t count) : values_(std::make_shared<std::vector<int64_t>>(count)) {}
  template <typename T>
  T* mutable_data_ptr() const {
    return values_->data();
  }
  const std::vector<int64_t>& values() const { return *values_; }
  Tensor to(Device, bool) const { return *this; }

 private:
  std::shared_ptr<std::vector<int64_t>> values_;
};

inline Tensor empty(std::initializer_list<int64_t> sizes, TensorOptions) {
  int64_t count = 1;
  for (const int64_t size : sizes) count *= size;
  return Tensor(static_cast<size_t>(count));
}

}  // namespace at
