// Medians of repeated runs, side by side.
#pragma once
#include <algorithm>
#include <chrono>
#include <functional>
#include <vector>

namespace lazy::benchmarks {

using Works = std::vector<std::function<void()>>;

// Medians of measure(work) of each: one run before the first that counts, then rounds in which each runs once, so that
// what slows the machine for a while slows them all and no one finds its data still in the cache.
template <typename Measure>
std::vector<double> medians(int rounds, const Works& works, const Measure& measure) {
  std::vector<std::vector<double>> times(works.size());
  for (int n = -1; n < rounds; ++n) {
    for (size_t w = 0; w < works.size(); ++w) {
      const double time = measure(works[w]);
      if (n >= 0) times[w].push_back(time);
    }
  }
  std::vector<double> medians;
  for (std::vector<double>& t : times) {
    std::nth_element(t.begin(), t.begin() + static_cast<std::ptrdiff_t>(t.size() / 2), t.end());
    medians.push_back(t[t.size() / 2]);
  }
  return medians;
}

// Milliseconds by the CPU's clock.
inline std::vector<double> medians_ms(int rounds, const Works& works) {
  return medians(rounds, works, [](const auto& work) {
    const auto begin = std::chrono::steady_clock::now();
    work();
    return std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - begin).count();
  });
}

}  // namespace lazy::benchmarks
