// Selects the device of the kernels under test: the GPU if LAZY_TEST_DEVICE=cuda, otherwise the CPU. Both devices run
// the same tests. With LAZY_TEST_DEVICE=cuda on a machine without a GPU, every test is skipped.
#pragma once
#include <cstddef>

namespace lazy::kernels::test {

bool on_cuda();

// Device memory that is initialized to NaN (all bits one) in every type. Throws std::runtime_error with CUDA's error
// text.
class DeviceMemory {
 public:
  explicit DeviceMemory(size_t bytes);
  DeviceMemory(const void* from, size_t bytes);
  DeviceMemory(const DeviceMemory&) = delete;
  DeviceMemory& operator=(const DeviceMemory&) = delete;
  ~DeviceMemory();
  template <typename T = void>
  T* get() const {
    return static_cast<T*>(data_);
  }
  void write(const void* from, size_t bytes) const;
  void read(void* to) const;  // copies the whole memory

 private:
  void* data_ = nullptr;
  size_t bytes_;
};
void synchronize_device();

}  // namespace lazy::kernels::test
