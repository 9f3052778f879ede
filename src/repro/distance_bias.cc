#include "repro/distance_bias.h"

#include <algorithm>
#include <cmath>

#include "core/error.h"

namespace lazy::repro {

namespace {

double largest(const BiasCurve& bias) {
  double most = 0;
  for (const double b : bias) most = std::max(most, std::abs(b));
  return most;
}

}  // namespace

int64_t effective_range(const BiasCurve& bias, double share) {
  const double threshold = share * largest(bias);
  for (auto d = static_cast<int64_t>(bias.size()) - 1; d > 0; --d) {
    if (std::abs(bias[static_cast<size_t>(d)]) > threshold) return d;
  }
  return 0;
}

double mean_between(const BiasCurve& bias, int64_t first, int64_t last) {
  last = std::min(last, static_cast<int64_t>(bias.size()) - 1);
  if (first > last)
    fail("distance bias", "expected a bias at distance {}, found a curve with {} entries", first, bias.size());
  double sum = 0;
  for (int64_t d = first; d <= last; ++d) sum += bias[static_cast<size_t>(d)];
  return sum / static_cast<double>(last - first + 1);
}

double mean_magnitude(const BiasCurve& bias) {
  double sum = 0;
  for (const double b : bias) sum += std::abs(b);
  return sum / static_cast<double>(std::max<size_t>(1, bias.size()));
}

InhibitionOfReturn inhibition_of_return(const BiasCurve& bias) {
  if (static_cast<int64_t>(bias.size()) < kShortestForReturn) {
    fail("distance bias", "inhibition of return needs at least {} distances, found {}", kShortestForReturn,
         bias.size());
  }
  InhibitionOfReturn r;
  r.first = mean_between(bias, 0, 1);
  r.dip = *std::min_element(bias.begin() + 1, bias.begin() + 11);
  r.recovery = mean_between(bias, 10, 100);
  r.far = mean_between(bias, 100, 511);
  r.holds = r.first > 0 && r.dip < 0 && r.recovery > r.dip && std::abs(r.recovery) < std::abs(r.dip) &&
            std::abs(r.far) <= 0.05 * largest(bias);
  return r;
}

double slope(const BiasCurve& bias, int64_t last) {
  last = std::min(last, static_cast<int64_t>(bias.size()) - 1);
  const double middle = static_cast<double>(last) / 2, mean = mean_between(bias, 0, last);
  double product = 0, square = 0;
  for (int64_t d = 0; d <= last; ++d) {
    const double x = static_cast<double>(d) - middle;
    product += x * (bias[static_cast<size_t>(d)] - mean);
    square += x * x;
  }
  return square > 0 ? product / square : 0;
}

}  // namespace lazy::repro
