#include "train/throughput.h"

#include <c10/core/CachingDeviceAllocator.h>
#include <sys/resource.h>

#include <algorithm>

namespace lazy::train {

double flops_per_token(const ModelConfig& config, int64_t sequence_length) {
  const auto count = count_parameters(config);
  const double multiplied = static_cast<double>(count.untied - config.vocab_size * config.hidden_size);
  const int64_t keys = config.window > 0 ? std::min(config.window, sequence_length) : sequence_length;
  // Query t of a sequence sees min(t, keys) keys: the mean over the sequence.
  const double seen = static_cast<double>(keys) - static_cast<double>(keys) * static_cast<double>(keys - 1) /
                                                      (2.0 * static_cast<double>(sequence_length));
  const double attention_width = static_cast<double>(config.num_layers * config.num_heads * config.head_dim);
  return 6.0 * multiplied + 12.0 * attention_width * seen;
}

PeakMemory peak_memory(at::Device device) {
  if (device.is_cuda()) {
    const auto stats = at::getDeviceAllocator(at::kCUDA)->getDeviceStats(device.index());
    const auto gib = [](const auto& kinds) { return static_cast<double>(kinds[0].peak) / (1 << 30); };  // [0]: of all sizes
    return {gib(stats.active_bytes), gib(stats.reserved_bytes)};
  }
  rusage usage{};
  ::getrusage(RUSAGE_SELF, &usage);
  const double held = static_cast<double>(usage.ru_maxrss) / (1024.0 * 1024.0);  // Linux counts KiB
  return {held, held};
}

}  // namespace lazy::train
