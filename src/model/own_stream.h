// A stream of a GPU for one thread's work.
#pragma once
#include <c10/core/StreamGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include <optional>

namespace lazy {

// While it lives, this thread queues its work on a GPU in a stream of its own, which graphs can be recorded from.
class OwnStream {
 public:
  explicit OwnStream(c10::Device device) {
    if (!device.is_cuda()) return;
    const c10::impl::VirtualGuardImpl gpu(device.type());
    gpu.getDefaultStream(device).synchronize();  // the weights are there
    guard_.emplace(gpu.getStreamFromGlobalPool(device));
  }
  ~OwnStream() {
    if (guard_) guard_->current_stream().synchronize();
  }
  OwnStream(const OwnStream&) = delete;
  OwnStream& operator=(const OwnStream&) = delete;

 private:
  std::optional<c10::StreamGuard> guard_;
};

}  // namespace lazy
