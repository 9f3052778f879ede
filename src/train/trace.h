// A Chrome trace of what happens between two moments: PyTorch's own profiler, operators on the CPU and kernels on a GPU.
// For chrome://tracing, Perfetto or TensorBoard.
#pragma once
#include <ATen/core/Tensor.h>

#include <filesystem>

namespace lazy::train {

class Trace {
 public:
  // Starts recording what this thread does, and the threads that work for it. One at a time.
  explicit Trace(at::Device device);
  ~Trace();  // without save: nothing is written
  Trace(const Trace&) = delete;
  Trace& operator=(const Trace&) = delete;
  // Stops and writes the file, complete or not at all. RunError with the reason.
  void save(const std::filesystem::path& path);

 private:
  bool recording_ = true;
};

}  // namespace lazy::train
