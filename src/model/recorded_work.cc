#include "model/recorded_work.h"

#include <exception>

#include "core/log.h"

namespace lazy {

std::function<void()> record_or_warn(ops::Recorder& recorder, const std::function<void()>& work,
                                     std::string_view what) {
  try {
    return recorder.record(work);
  } catch (const std::exception& error) {
    log::warn("{}: CUDA graph capture failed, kernels are launched individually: {}", what, error.what());
    return {};
  }
}

}  // namespace lazy
