// A Chrome trace of what happens between two moments: PyTorch's own profiler, operators on the CPU and kernels on a
// GPU. For chrome://tracing, Perfetto or TensorBoard.
#pragma once
#include <ATen/core/Tensor.h>

#include <filesystem>
#include <memory>

namespace torch::autograd::profiler {
struct ProfilerResult;
}

namespace lazy::train {

class Trace {
 public:
  // Starts recording what this thread does, and the threads that work for it. One at a time. `shapes`: of operators'
  // inputs too.
  explicit Trace(at::Device device, bool shapes = true);
  ~Trace();  // without save: nothing is written
  Trace(const Trace&) = delete;
  Trace& operator=(const Trace&) = delete;
  // Stops. What was recorded, event by event.
  std::unique_ptr<torch::autograd::profiler::ProfilerResult> stop();
  // Stops and writes the file, complete or not at all. RunError with the reason.
  void save(const std::filesystem::path& path);

 private:
  bool recording_ = true;
};

}  // namespace lazy::train
