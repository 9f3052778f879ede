// Measurements of a running process: a Chrome trace of PyTorch's profiler, and peak memory.
#pragma once
#include <ATen/core/Tensor.h>

#include <filesystem>
#include <memory>

#include "train/metrics.h"

namespace torch::autograd::profiler {
struct ProfilerResult;
}

namespace lazy::train {

// Records operators on the CPU and kernels on a GPU between construction and stop(), for chrome://tracing, Perfetto or
// TensorBoard.
class Trace {
 public:
  // Records this thread and the threads that work for it. One at a time. `shapes`: also those of operators' inputs.
  explicit Trace(at::Device device, bool shapes = true);
  ~Trace();  // discards the recording
  Trace(const Trace&) = delete;
  Trace& operator=(const Trace&) = delete;
  // Stops recording and returns the events.
  std::unique_ptr<torch::autograd::profiler::ProfilerResult> stop();
  // Stops recording and writes the file atomically. RunError with the reason.
  void save(const std::filesystem::path& path);

 private:
  bool recording_ = true;
};

// Peak memory under torchtitan's names: memory/max_reserved(GiB) and (%) of the machine's memory. On a CPU the peak of
// the process; on a GPU since the last call, with memory/max_active(GiB), memory/max_active(%),
// memory/num_alloc_retries and memory/num_ooms.
Scalars memory_use(at::Device device);

}  // namespace lazy::train
