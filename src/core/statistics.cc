#include "core/statistics.h"

#include <algorithm>

namespace lazy {

double mean_of(const std::vector<double>& values) {
  double sum = 0;
  for (const double v : values) sum += v;
  return sum / static_cast<double>(values.size());
}

double variance_of(const std::vector<double>& values) {
  const double mean = mean_of(values);
  double sum = 0;
  for (const double v : values) sum += (v - mean) * (v - mean);
  return values.size() > 1 ? sum / static_cast<double>(values.size() - 1) : 0;
}

std::pair<double, double> central_interval(std::vector<double> draws, double confidence) {
  std::sort(draws.begin(), draws.end());
  const auto quantile = [&](double q) {
    const double at = q * static_cast<double>(draws.size() - 1);
    const auto below = static_cast<size_t>(at);
    const size_t above = std::min(below + 1, draws.size() - 1);
    return draws[below] + (at - static_cast<double>(below)) * (draws[above] - draws[below]);
  };
  return {quantile((1 - confidence) / 2), quantile((1 + confidence) / 2)};
}

}  // namespace lazy
