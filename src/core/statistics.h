// Means, variances, and the draws of bootstrap confidence intervals: percentiles of a statistic over samples drawn with
// replacement (Efron 1979). Equal seeds give equal intervals on every machine.
#pragma once
#include <cstdint>
#include <vector>

#include "core/random.h"

namespace lazy {

double harmonic_number(int64_t n);  // 1 + 1/2 + ... + 1/n

double mean_of(const std::vector<double>& values);
double variance_of(const std::vector<double>& values);  // n - 1 in the denominator; zero for a single value
double median_of(std::vector<double> values);           // the upper one of two in the middle; NaN without values

struct ConfidenceInterval {
  double low = 0, high = 0;
  bool operator==(const ConfidenceInterval&) const = default;
};

// The central `confidence` of bootstrap draws (percentile method), linear between order statistics. At least one draw,
// all finite.
ConfidenceInterval central_interval(std::vector<double> draws, double confidence = 0.95);

// `statistic(generator)` computes the statistic of one resample, which it draws from the generator.
template <typename Generator, typename Statistic>
std::vector<double> bootstrap_draws_from(Generator& generator, int64_t draws, Statistic&& statistic) {
  std::vector<double> out(static_cast<size_t>(draws));
  for (double& value : out) value = statistic(generator);
  return out;
}

// The same with a new generator.
template <typename Statistic>
std::vector<double> bootstrap_draws(int64_t draws, uint64_t seed, Statistic&& statistic) {
  Random generator(seed);
  return bootstrap_draws_from(generator, draws, statistic);
}

}  // namespace lazy
