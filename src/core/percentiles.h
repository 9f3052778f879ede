// The interval that a bootstrap's draws give (percentile method, Efron 1979).
#pragma once
#include <utility>
#include <vector>

namespace lazy {

// The central `confidence` of the draws, linear between order statistics. At least one draw, all finite.
std::pair<double, double> central_interval(std::vector<double> draws, double confidence = 0.95);

}  // namespace lazy
