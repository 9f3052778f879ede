// Where the kernels under test run: LAZY_TEST_DEVICE=cuda asks for the GPU, everything else is the CPU. The same tests
// serve both. Asked for a GPU where there is none, every test is skipped.
#pragma once
#include <cstddef>

namespace lazy::kernels::test {

bool on_cuda();

// Device memory that starts as NaN (all ones) in every type. Throws std::runtime_error with CUDA's text.
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
  void read(void* to) const;  // all of it

 private:
  void* data_ = nullptr;
  size_t bytes_;
};
void synchronize_device();

}  // namespace lazy::kernels::test
