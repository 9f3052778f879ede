// Medians of repeated runs, side by side.
#pragma once
#include <algorithm>
#include <chrono>
#include <functional>
#include <vector>

namespace lazy::benchmarks {

// Milliseconds of each: one run before the first that counts, then rounds in which each runs once, so that what slows the
// machine for a while slows them all and no one finds its data still in the cache.
inline std::vector<double> medians_ms(int rounds, const std::vector<std::function<void()>>& works) {
  std::vector<std::vector<double>> times(works.size());
  for (int n = -1; n < rounds; ++n) {
    for (size_t w = 0; w < works.size(); ++w) {
      const auto begin = std::chrono::steady_clock::now();
      works[w]();
      if (n >= 0) times[w].push_back(std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - begin).count());
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
