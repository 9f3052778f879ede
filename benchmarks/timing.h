// Medians of repeated runs.
#pragma once
#include <algorithm>
#include <chrono>
#include <functional>
#include <vector>

namespace lazy::benchmarks {

// Milliseconds; one run before the first that counts.
inline double median_ms(int repeats, const std::function<void()>& work) {
  work();
  std::vector<double> times;
  for (int n = 0; n < repeats; ++n) {
    const auto begin = std::chrono::steady_clock::now();
    work();
    times.push_back(std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - begin).count());
  }
  std::nth_element(times.begin(), times.begin() + static_cast<std::ptrdiff_t>(times.size() / 2), times.end());
  return times[times.size() / 2];
}

}  // namespace lazy::benchmarks
