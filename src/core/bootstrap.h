// 95 % intervals by resampling: percentiles of a statistic over samples drawn with replacement (Efron 1979).
#pragma once
#include <cstdint>
#include <functional>
#include <vector>

#include "core/random.h"

namespace lazy {

struct Estimate {
  double value = 0, low = 0, high = 0;  // the statistic of the data, and its 95 % interval
  int64_t n = 0;                        // what was resampled: sequences, heads; of two samples the smaller
};

using Groups = std::vector<std::vector<double>>;  // [seed][item]; one group when there is one seed

// `draw` makes the statistic of one resample. The same numbers on every machine.
Estimate bootstrap(double value, int64_t n, const std::function<double(Random&)>& draw, int draws = 2000,
                   uint64_t seed = 1);

// The mean. Several groups are resampled first and then what is in them, so that the interval is about other seeds too.
// Error when there is nothing to resample.
Estimate bootstrap_mean(const Groups& groups);
Estimate bootstrap_mean(const std::vector<double>& values);
// mean(a) - mean(b) of independent samples, such as the heads of two models.
Estimate bootstrap_difference(const std::vector<double>& a, const std::vector<double>& b);
// mean(a) / mean(b), likewise.
Estimate bootstrap_ratio(const std::vector<double>& a, const std::vector<double>& b);
// variance(a) - variance(b), likewise.
Estimate bootstrap_variance_difference(const std::vector<double>& a, const std::vector<double>& b);

}  // namespace lazy
