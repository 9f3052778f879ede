#include "core/statistics.h"

#include <algorithm>
#include <cmath>

#include "core/error.h"

namespace lazy {
namespace {

using Values = std::vector<double>;

Values resample(const Values& values, Random& random) {
  Values out(values.size());
  for (double& v : out) v = values[random.below(values.size())];
  return out;
}

void require_size(const Values& values, size_t least) {
  if (values.size() < least)
    fail("bootstrap", "expected at least {} values to resample, found {}", least, values.size());
}

// `a` is drawn before `b`: the published intervals depend on this order.
Estimate bootstrap_two_samples(const Values& a, const Values& b, size_t least, double (*statistic)(const Values&),
                               const auto& compare) {
  require_size(a, least);
  require_size(b, least);
  const auto n = static_cast<int64_t>(std::min(a.size(), b.size()));
  return bootstrap(compare(statistic(a), statistic(b)), n, [&](Random& random) {
    const double first = statistic(resample(a, random));
    return compare(first, statistic(resample(b, random)));
  });
}

}  // namespace

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

Estimate bootstrap(double value, int64_t n, const std::function<double(Random&)>& statistic, int draws, uint64_t seed) {
  const auto [low, high] = central_interval(bootstrap_draws(draws, seed, statistic));
  return {value, low, high, n};
}

Estimate bootstrap_mean(const Groups& groups) {
  if (groups.empty()) fail("bootstrap", "expected values to resample, found none");
  double value = 0;
  int64_t n = 0;
  for (const Values& group : groups) {
    require_size(group, 1);
    value += mean_of(group) / static_cast<double>(groups.size());
    n += static_cast<int64_t>(group.size());
  }
  return bootstrap(value, n, [&](Random& random) {
    double sum = 0;
    for (size_t i = 0; i < groups.size(); ++i) {
      const Values& group = groups.size() == 1 ? groups[0] : groups[random.below(groups.size())];
      sum += mean_of(resample(group, random));
    }
    return sum / static_cast<double>(groups.size());
  });
}

Estimate bootstrap_mean(const Values& values) { return bootstrap_mean(Groups{values}); }

Estimate bootstrap_difference(const Values& a, const Values& b) {
  return bootstrap_two_samples(a, b, 1, mean_of, std::minus<>());
}

Estimate bootstrap_ratio(const Values& a, const Values& b) {
  return bootstrap_two_samples(a, b, 1, mean_of, std::divides<>());
}

Estimate bootstrap_variance_difference(const Values& a, const Values& b) {
  return bootstrap_two_samples(a, b, 2, variance_of, std::minus<>());
}

}  // namespace lazy
