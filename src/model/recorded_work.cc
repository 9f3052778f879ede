#include "model/recorded_work.h"

#include <exception>

#include "core/log.h"

namespace lazy {

std::function<void()> record_or_warn(ops::Recorder& recorder, const std::function<void()>& work,
                                     std::string_view what) {
  try {
    return recorder.record(work);
  } catch (const std::exception& error) {
    log::warn("{} are queued kernel by kernel, for recording them has failed: {}", what, error.what());
    return {};
  }
}

}  // namespace lazy
