// Recording (ops/recorder.h) that may fail.
#pragma once
#include <functional>
#include <string_view>

#include "ops/recorder.h"

namespace lazy {

// recorder.record(work); empty, with a warning that names `what`, where that fails: for memory, most likely. The caller
// goes on with `work` itself.
std::function<void()> record_or_warn(ops::Recorder& recorder, const std::function<void()>& work, std::string_view what);

}  // namespace lazy
