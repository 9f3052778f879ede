// Means, variances and bootstrap confidence intervals (Efron 1979). A bootstrap draw is the value of a statistic for a
// resample, which is drawn from the data with replacement. The interval consists of percentiles of many draws. The same
// seed gives the same interval on every machine.
#pragma once
#include <cstdint>
#include <vector>

#include "core/random.h"

namespace lazy {

double harmonic_number(int64_t n);  // 1 + 1/2 + ... + 1/n

double mean_of(const std::vector<double>& values);
double variance_of(const std::vector<double>& values);  // uses n - 1 in the denominator; zero for a single value
// Returns the median. For an even number of values, this is the larger of the two middle values. Returns NaN for an
// empty list.
double median_of(std::vector<double> values);

struct ConfidenceInterval {
  double low = 0, high = 0;
  bool operator==(const ConfidenceInterval&) const = default;
};

// Returns the interval that contains the central fraction `confidence` of the bootstrap draws (percentile method).
// Percentiles between two sorted draws are interpolated linearly. Requires at least one draw; all draws must be finite.
ConfidenceInterval central_interval(std::vector<double> draws, double confidence = 0.95);

// Returns `draws` bootstrap draws. `statistic(generator)` draws one resample with the generator and returns the value
// of the statistic for it.
template <typename Generator, typename Statistic>
std::vector<double> bootstrap_draws_from(Generator& generator, int64_t draws, Statistic&& statistic) {
  std::vector<double> out(static_cast<size_t>(draws));
  for (double& value : out) value = statistic(generator);
  return out;
}

// Like bootstrap_draws_from(), with a new generator that is created from `seed`.
template <typename Statistic>
std::vector<double> bootstrap_draws(int64_t draws, uint64_t seed, Statistic&& statistic) {
  Random generator(seed);
  return bootstrap_draws_from(generator, draws, statistic);
}

}  // namespace lazy
