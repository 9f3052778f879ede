// Measurements of the running process: a Chrome trace from the PyTorch profiler, and peak memory.
#pragma once
#include <ATen/core/Tensor.h>

#include <filesystem>
#include <memory>

#include "train/metrics.h"

namespace torch::autograd::profiler {
struct ProfilerResult;
}

namespace lazy::train {

// Records CPU operators and GPU kernels from construction to stop(), for chrome://tracing, Perfetto or TensorBoard.
class Trace {
 public:
  // Records this thread and its worker threads. Only one recording may be active at a time. `shapes`: also record the
  // shapes of operator inputs.
  explicit Trace(at::Device device, bool shapes = true);
  ~Trace();  // discards the recording
  Trace(const Trace&) = delete;
  Trace& operator=(const Trace&) = delete;
  // Stops recording and returns the events.
  std::unique_ptr<torch::autograd::profiler::ProfilerResult> stop();
  // Stops recording and writes the file atomically. Throws RunError with the reason on failure.
  void save(const std::filesystem::path& path);

 private:
  bool recording_ = true;
};

// Peak memory under the key names of torchtitan: memory/max_reserved(GiB), and memory/max_reserved(%) relative to the
// memory of the machine. On a CPU this is the peak of the process. On a GPU it is the peak since the last call,
// together with memory/max_active(GiB), memory/max_active(%), memory/num_alloc_retries and memory/num_ooms.
Scalars memory_use(at::Device device);

}  // namespace lazy::train
