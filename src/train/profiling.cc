#include "train/profiling.h"

#include <c10/core/CachingDeviceAllocator.h>
#include <sys/resource.h>
#include <torch/csrc/autograd/profiler_kineto.h>
#include <unistd.h>

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
  // The profiler does not report failed writes, so the file is checked for completeness.
  std::string text;
  if (fs::exists(unfinished)) text = read_file(unfinished);
  fs::remove(unfinished, error);
  while (!text.empty() && std::isspace(static_cast<unsigned char>(text.back()))) text.pop_back();
  if (!text.ends_with('}'))
    fail_run("trace", "{}: the profiler could not write the trace; is the disk full?", path.string());
  write_file_atomic(path, text);
}

namespace {

constexpr double kGiB = 1024.0 * 1024.0 * 1024.0;

void append(Scalars& out, const std::string& name, double bytes, double total) {
  out.emplace_back(name + "(GiB)", bytes / kGiB);
  out.emplace_back(name + "(%)", 100 * bytes / total);
}

Scalars of_process() {
  rusage usage{};
  ::getrusage(RUSAGE_SELF, &usage);
  Scalars out;
  append(out, "memory/max_reserved", 1024.0 * static_cast<double>(usage.ru_maxrss),  // on Linux, ru_maxrss is in KiB
         static_cast<double>(::sysconf(_SC_PHYS_PAGES)) * static_cast<double>(::sysconf(_SC_PAGESIZE)));
  return out;
}

}  // namespace

Scalars memory_use(at::Device device) {
  if (device.is_cpu()) return of_process();
  auto* allocator = c10::getDeviceAllocator(device.type());
  const auto stats = allocator->getDeviceStats(device.index());
  const auto total = static_cast<double>(allocator->getMemoryInfo(device.index()).second);
  constexpr auto kAll = static_cast<size_t>(c10::CachingAllocator::StatType::AGGREGATE);
  Scalars out;
  append(out, "memory/max_active", static_cast<double>(stats.active_bytes[kAll].peak), total);
  append(out, "memory/max_reserved", static_cast<double>(stats.reserved_bytes[kAll].peak), total);
  out.emplace_back("memory/num_alloc_retries", static_cast<double>(stats.num_alloc_retries));
  out.emplace_back("memory/num_ooms", static_cast<double>(stats.num_ooms));
  allocator->resetPeakStats(device.index());
  return out;
}

}  // namespace lazy::train
