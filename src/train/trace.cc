#include "train/trace.h"

#include <torch/csrc/autograd/profiler_kineto.h>

#include <set>

#include "core/error.h"
#include "core/file.h"

namespace lazy::train {
namespace fs = std::filesystem;
namespace profiler = torch::autograd::profiler;
using torch::profiler::impl::ActivityType;

Trace::Trace(at::Device device, bool shapes) {
  const torch::profiler::impl::ProfilerConfig config(torch::profiler::impl::ProfilerState::KINETO, shapes);
  std::set<ActivityType> activities{ActivityType::CPU};
  if (device.is_cuda()) activities.insert(ActivityType::CUDA);
  profiler::prepareProfiler(config, activities);
  profiler::enableProfiler(config, activities, {at::RecordScope::FUNCTION, at::RecordScope::BACKWARD_FUNCTION});
}

Trace::~Trace() {
  if (recording_) profiler::disableProfiler();
}

std::unique_ptr<profiler::ProfilerResult> Trace::stop() {
  recording_ = false;
  return profiler::disableProfiler();
}

void Trace::save(const fs::path& path) {
  const auto result = stop();
  std::error_code error;
  fs::create_directories(path.parent_path(), error);
  const fs::path unfinished = path.string() + ".tmp";
  fs::remove(unfinished, error);
  result->save(unfinished.string());
  // The profiler tells nobody when it could not write.
  std::string text;
  if (fs::exists(unfinished)) text = read_file(unfinished);
  fs::remove(unfinished, error);
  while (!text.empty() && std::isspace(static_cast<unsigned char>(text.back()))) text.pop_back();
  if (!text.ends_with('}')) fail_run("trace", "{}: the profiler could not write it (a full disk?)", path.string());
  write_file_atomic(path, text);
}

}  // namespace lazy::train
