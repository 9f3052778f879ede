#include "core/statistics.h"

#include <algorithm>
#include <cmath>

namespace lazy {
using Values = std::vector<double>;

double harmonic_number(int64_t n) {
  double sum = 0;
  for (int64_t i = 1; i <= n; ++i) sum += 1 / static_cast<double>(i);
  return sum;
}

double mean_of(const Values& values) {
  double sum = 0;
  for (const double v : values) sum += v;
  return sum / static_cast<double>(values.size());
}

double variance_of(const Values& values) {
  const double mean = mean_of(values);
  double sum = 0;
  for (const double v : values) sum += (v - mean) * (v - mean);
  return values.size() > 1 ? sum / static_cast<double>(values.size() - 1) : 0;
}

double median_of(std::vector<double> values) {
  if (values.empty()) return NAN;
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

ConfidenceInterval central_interval(Values draws, double confidence) {
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
