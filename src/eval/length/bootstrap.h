// Confidence intervals by resampling documents: the same seeded resamples for every statistic, so that two of them may
// be compared draw by draw.
#pragma once
#include <cstdint>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "core/statistics.h"

namespace lazy::eval::length {

using Interval = std::optional<ConfidenceInterval>;  // none: fewer than two units, or nothing finite

class Bootstrap {
 public:
  Bootstrap(int64_t units, int64_t resamples, uint64_t seed) : units_(units), resamples_(resamples), seed_(seed) {}
  // sum(numerator) / sum(denominator) over the units of each resample; NaN where the denominator's sum is zero.
  std::vector<double> ratios(std::span<const double> numerator, std::span<const double> denominator) const;
  // The central 95 % of the finite draws (percentile method).
  Interval interval(std::vector<double> draws) const;
  Interval ratio(std::span<const double> numerator, std::span<const double> denominator) const {
    return interval(ratios(numerator, denominator));
  }

 private:
  int64_t units_, resamples_;
  uint64_t seed_;
};

// Wilson's 95 % interval of a share of `trials`; none without trials. For the probes, whose trials are few and often
// all right or all wrong.
Interval wilson(double successes, double trials);

}  // namespace lazy::eval::length
