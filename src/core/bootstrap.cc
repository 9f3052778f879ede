#include "core/bootstrap.h"

#include <algorithm>
#include <cmath>

#include "core/error.h"
#include "core/percentiles.h"

namespace lazy {
namespace {

using Values = std::vector<double>;

Values resample(const Values& values, Random& random) {
  Values out(values.size());
  for (double& v : out) v = values[random.below(values.size())];
  return out;
}

void require(const Values& values, size_t least) {
  if (values.size() < least) fail("bootstrap", "expected at least {} values to resample, found {}", least, values.size());
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

Estimate bootstrap_difference(const Values& a, const Values& b) {
  require(a, 1);
  require(b, 1);
  return bootstrap(mean_of(a) - mean_of(b), static_cast<int64_t>(std::min(a.size(), b.size())),
                   [&](Random& random) { return mean_of(resample(a, random)) - mean_of(resample(b, random)); });
}

Estimate bootstrap_variance_difference(const Values& a, const Values& b) {
  require(a, 2);
  require(b, 2);
  return bootstrap(variance_of(a) - variance_of(b), static_cast<int64_t>(std::min(a.size(), b.size())),
                   [&](Random& random) { return variance_of(resample(a, random)) - variance_of(resample(b, random)); });
}

}  // namespace lazy
