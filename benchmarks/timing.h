// Medians of repeated runs, side by side.
#pragma once
#include <c10/core/Event.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include <algorithm>
#include <chrono>
#include <functional>
#include <vector>

namespace lazy::benchmarks {

// Milliseconds of one run, by the clock on the CPU, by events on the current stream of a GPU.
inline double once_ms(c10::DeviceType device, const std::function<void()>& work) {
  if (device == c10::kCPU) {
    const auto begin = std::chrono::steady_clock::now();
    work();
    return std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - begin).count();
  }
  const c10::impl::VirtualGuardImpl guard(device);
  const c10::Stream stream = guard.getStream(guard.getDevice());
  c10::Event begin(device, c10::EventFlag::BACKEND_DEFAULT), end(device, c10::EventFlag::BACKEND_DEFAULT);
  begin.record(stream);
  work();
  end.record(stream);
  end.synchronize();
  return begin.elapsedTime(end);
}

// Milliseconds of each: warm-up runs before the first that counts, then rounds in which each runs once, so that what slows
// the machine for a while slows them all and no one finds its data still in the cache.
inline std::vector<double> medians_ms(int rounds, const std::vector<std::function<void()>>& works,
                                      c10::DeviceType device = c10::kCPU) {
  std::vector<std::vector<double>> times(works.size());
  for (int n = device == c10::kCPU ? -1 : -3; n < rounds; ++n) {
    for (size_t w = 0; w < works.size(); ++w) {
      const double ms = once_ms(device, works[w]);
      if (n >= 0) times[w].push_back(ms);
    }
  }
  std::vector<double> medians;
  for (std::vector<double>& t : times) {
    std::nth_element(t.begin(), t.begin() + static_cast<std::ptrdiff_t>(t.size() / 2), t.end());
    medians.push_back(t[t.size() / 2]);
  }
  return medians;
}

}  // namespace lazy::benchmarks
