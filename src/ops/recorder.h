// Records GPU work as a CUDA graph, so that the work can be launched repeatedly.
#pragma once
#include <c10/core/Device.h>

#include <functional>
#include <memory>

namespace lazy::ops {

class Recorder {
 public:
  virtual ~Recorder() = default;
  // Records the GPU work that `work` launches on the current stream, which must not be the default stream, without
  // executing it on the GPU. The returned function launches the recorded work. `work` must have been run before; it
  // must not synchronize with the device or read host memory. Tensors that `work` allocates may share memory with the
  // tensors of earlier recordings. Results that must persist must therefore be written to tensors that were allocated
  // before.
  virtual std::function<void()> record(const std::function<void()>& work) = 0;
};

// Creates a recorder for the device. On a CPU, the function that record() returns runs `work` again.
std::unique_ptr<Recorder> make_recorder(c10::Device device);

}  // namespace lazy::ops
