#include "core/bootstrap.h"

#include <algorithm>

#include "core/error.h"
#include "core/statistics.h"

namespace lazy {
namespace {

using Values = std::vector<double>;

Values resample(const Values& values, Random& random) {
  Values out(values.size());
  for (double& v : out) v = values[random.below(values.size())];
  return out;
}

void require(const Values& values, size_t least) {
  if (values.size() < least)
    fail("bootstrap", "expected at least {} values to resample, found {}", least, values.size());
}

// A statistic of each of two independent samples, compared; `a` is drawn before `b`.
Estimate of_two(const Values& a, const Values& b, size_t least, double (*statistic)(const Values&),
                const auto& compare) {
  require(a, least);
  require(b, least);
  const auto n = static_cast<int64_t>(std::min(a.size(), b.size()));
  return bootstrap(compare(statistic(a), statistic(b)), n, [&](Random& random) {
    const double first = statistic(resample(a, random));
    return compare(first, statistic(resample(b, random)));
  });
}

}  // namespace

Estimate bootstrap(double value, int64_t n, const std::function<double(Random&)>& draw, int draws, uint64_t seed) {
  Random random(seed);
  Values all(static_cast<size_t>(draws));
  for (double& v : all) v = draw(random);
  const auto [low, high] = central_interval(std::move(all));
  return {value, low, high, n};
}

Estimate bootstrap_mean(const Groups& groups) {
  if (groups.empty()) fail("bootstrap", "expected values to resample, found none");
  double value = 0;
  int64_t n = 0;
  for (const Values& group : groups) {
    require(group, 1);
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

Estimate bootstrap_difference(const Values& a, const Values& b) { return of_two(a, b, 1, mean_of, std::minus<>()); }

Estimate bootstrap_ratio(const Values& a, const Values& b) { return of_two(a, b, 1, mean_of, std::divides<>()); }

Estimate bootstrap_variance_difference(const Values& a, const Values& b) {
  return of_two(a, b, 2, variance_of, std::minus<>());
}

}  // namespace lazy
