// Work of a device that is queued again and again, recorded once: a CUDA graph.
#pragma once
#include <c10/core/Device.h>

#include <functional>
#include <memory>

namespace lazy::ops {

class Recorder {
 public:
  virtual ~Recorder() = default;
  // Records what `work` queues on the current stream, which must not be the default one, without running it; the result
  // queues it. `work` has run once before, neither waits for the device nor reads host memory, and its tensors may be
  // those of earlier records: what is to last lies in tensors that were made before.
  virtual std::function<void()> record(const std::function<void()>& work) = 0;
};

// On a CPU: calls `work` again.
std::unique_ptr<Recorder> make_recorder(c10::Device device);

}  // namespace lazy::ops
