// Means, variances and percentile intervals: what bootstraps and standard errors are made of.
#pragma once
#include <utility>
#include <vector>

namespace lazy {

double mean_of(const std::vector<double>& values);
double variance_of(const std::vector<double>& values);  // n - 1 in the denominator; zero for a single value

// The central `confidence` of a bootstrap's draws (percentile method, Efron 1979), linear between order statistics. At
// least one draw, all finite.
std::pair<double, double> central_interval(std::vector<double> draws, double confidence = 0.95);

}  // namespace lazy
