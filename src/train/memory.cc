#include "train/memory.h"

#include <c10/core/CachingDeviceAllocator.h>
#include <sys/resource.h>
#include <unistd.h>

namespace lazy::train {

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
  append(out, "memory/max_reserved", 1024.0 * static_cast<double>(usage.ru_maxrss),  // Linux counts KiB
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
