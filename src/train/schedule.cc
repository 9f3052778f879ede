#include "train/schedule.h"

#include <algorithm>
#include <cmath>
#include <numbers>

namespace lazy::train {

double Schedule::rate(int64_t steps_taken) const {
  if (steps_taken < warmup_steps) return peak * static_cast<double>(steps_taken) / static_cast<double>(warmup_steps);
  const int64_t span = std::max<int64_t>(1, steps - warmup_steps);
  const double x = std::min(1.0, static_cast<double>(steps_taken - warmup_steps) / static_cast<double>(span));
  const double left = decay == Decay::cosine ? 0.5 * (1.0 + std::cos(std::numbers::pi * x)) : 1.0 - x;
  return peak * (min_factor + (1.0 - min_factor) * left);
}

}  // namespace lazy::train
