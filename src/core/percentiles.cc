#include "core/percentiles.h"

#include <algorithm>

namespace lazy {

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
