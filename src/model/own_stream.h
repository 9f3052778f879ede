// A separate CUDA stream for the work of one thread.
#pragma once
#include <c10/core/StreamGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include <optional>

namespace lazy {

// During the lifetime of this object, the current thread queues its GPU work in a separate non-default stream, which
// CUDA graph capture requires.
class OwnStream {
 public:
  explicit OwnStream(c10::Device device) {
    if (!device.is_cuda()) return;
    const c10::impl::VirtualGuardImpl gpu(device.type());
    gpu.getDefaultStream(device).synchronize();  // wait until the weights have been written
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
