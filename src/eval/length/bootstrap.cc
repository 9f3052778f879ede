#include "eval/length/bootstrap.h"

#include <algorithm>
#include <cmath>

#include "core/error.h"
#include "core/random.h"
#include "core/statistics.h"

namespace lazy::eval::length {

std::vector<double> Bootstrap::ratios(std::span<const double> numerator, std::span<const double> denominator) const {
  const auto units = static_cast<size_t>(units_);
  if (numerator.size() != units || denominator.size() != units) {
    fail("bootstrap", "expected {} units, found {} and {}", units, numerator.size(), denominator.size());
  }
  std::vector<double> draws;
  Random random(seed_);
  for (int64_t r = 0; r < resamples_; ++r) {
    double above = 0, below = 0;
    for (size_t i = 0; i < units; ++i) {
      const auto u = static_cast<size_t>(random.below(units));
      above += numerator[u];
      below += denominator[u];
    }
    draws.push_back(below == 0 ? NAN : above / below);
  }
  return draws;
}

Interval Bootstrap::interval(std::vector<double> draws) const {
  if (units_ < 2) return std::nullopt;
  std::erase_if(draws, [](double d) { return !std::isfinite(d); });
  if (draws.empty()) return std::nullopt;
  return central_interval(std::move(draws));
}

Interval wilson(double successes, double trials) {
  if (!(trials > 0)) return std::nullopt;
  constexpr double z = 1.959963984540054;  // of the normal distribution, 95 %
  const double p = successes / trials, scale = 1 + z * z / trials, middle = (p + z * z / (2 * trials)) / scale;
  const double half = z / scale * std::sqrt(p * (1 - p) / trials + z * z / (4 * trials * trials));
  return ConfidenceInterval{std::max(0.0, middle - half), std::min(1.0, middle + half)};
}

}  // namespace lazy::eval::length
