#include "model/blocks/activation_budget.h"

#include <c10/core/AllocatorConfig.h>
#include <c10/core/CachingDeviceAllocator.h>

#include <algorithm>
#include <string>

namespace lazy {

namespace {

constexpr double kMargin = 0.08;            // fraction of the device's memory that the budget leaves unused
constexpr double kShareAfterRetries = 0.8;  // after an allocator retry, the budget is multiplied by this factor

thread_local ActivationBudget* current_budget = nullptr;

// Returns the fraction of the device's memory that PyTorch's allocator may reserve. It is parsed from
// PYTORCH_ALLOC_CONF, because DeviceAllocator does not expose it.
double allowed_share() {
  const std::string settings = c10::CachingAllocator::AcceleratorAllocatorConfig::last_allocator_settings();
  const std::string key = "per_process_memory_fraction:";
  const size_t at = settings.find(key);
  return at == std::string::npos ? 1 : std::stod(settings.substr(at + key.size()));
}

MemoryGauge gauge_of(c10::Device device) {
  if (device.is_cpu()) return {};
  auto* const allocator = c10::getDeviceAllocator(device.type());
  const auto stats = [allocator, device] { return allocator->getDeviceStats(device.index()); };
  constexpr auto kAll = static_cast<size_t>(c10::CachingAllocator::StatType::AGGREGATE);
  const auto memory = [allocator, device, stats, share = allowed_share()] {
    const auto now = stats();
    const auto [free, total] = allocator->getMemoryInfo(device.index());
    const int64_t reserved = now.reserved_bytes[kAll].current;
    const auto allowed = static_cast<int64_t>(share * static_cast<double>(total));
    return DeviceMemory{.reserved = reserved,
                        .free = std::min(static_cast<int64_t>(free), allowed - reserved),
                        .total = static_cast<int64_t>(total),
                        .retries = now.num_alloc_retries};
  };
  return {.memory = memory, .allocated = [stats] { return stats().allocated_bytes[kAll].current; }};
}

}  // namespace

ActivationBudget::ActivationBudget(c10::Device device) : ActivationBudget(gauge_of(device)) {}
ActivationBudget::ActivationBudget(MemoryGauge gauge) : gauge_(std::move(gauge)) {}

ActivationBudget* ActivationBudget::current() { return current_budget; }

ActivationBudget::ForwardPass::ForwardPass(ActivationBudget& budget) {
  if (!budget.gauge_.memory) return;
  budget.fill();
  current_budget = &budget;
}
ActivationBudget::ForwardPass::~ForwardPass() { current_budget = nullptr; }

void ActivationBudget::fill() {
  const DeviceMemory now = gauge_.memory();
  if (in_step_) shrink_after_retries(now);
  seen_retries_ = now.retries, in_step_ = true;
  const double free = static_cast<double>(now.free + now.reserved - needed_);
  left_ = needed_ < 0 ? 0 : static_cast<int64_t>(share_ * (free - kMargin * static_cast<double>(now.total)));
}

void ActivationBudget::end_step() {
  if (!gauge_.memory) return;
  const DeviceMemory now = gauge_.memory();
  shrink_after_retries(now);
  if (needed_ < 0) needed_ = now.reserved;
  in_step_ = false;
}

void ActivationBudget::shrink_after_retries(const DeviceMemory& now) {
  if (now.retries > seen_retries_) share_ *= kShareAfterRetries;
}

bool ActivationBudget::take(int64_t bytes) {
  if (left_ < bytes) return false;
  left_ -= bytes;
  return true;
}

void ActivationBudget::note_cost(int64_t bytes) {
  int64_t before = largest_;
  while (bytes > before && !largest_.compare_exchange_weak(before, bytes)) {
  }
}

}  // namespace lazy
