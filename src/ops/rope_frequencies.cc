#include "ops/rope_frequencies.h"

#include <algorithm>
#include <cmath>
#include <numbers>

namespace lazy::ops {

namespace {

constexpr double kTurn = 2 * std::numbers::pi;

double llama3(double frequency, const RopeScaling& s) {
  // Number of rotations of the pair over the original context.
  const double turns = static_cast<double>(s.original_length) * frequency / kTurn;
  const double kept = std::clamp((turns - s.low_frequency) / (s.high_frequency - s.low_frequency), 0.0, 1.0);
  return (1 - kept) * frequency / s.factor + kept * frequency;
}

// Returns the index of the pair, as a real number, that completes the given number of rotations over the original
// context.
double yarn_pair(double turns, double base, double dims, const RopeScaling& s) {
  return dims * std::log(static_cast<double>(s.original_length) / (turns * kTurn)) / (2 * std::log(base));
}

}  // namespace

RopeFrequencies rope_frequencies(double base, int64_t rotary_dim, const RopeScaling& s) {
  RopeFrequencies out;
  const double dims = static_cast<double>(rotary_dim);
  double low = 0, high = 0;
  if (s.type == "yarn") {
    low = yarn_pair(s.beta_fast, base, dims, s);
    high = yarn_pair(s.beta_slow, base, dims, s);
    if (s.truncate) {
      low = std::floor(low);
      high = std::ceil(high);
    }
    low = std::max(low, 0.0);
    high = std::min(high, dims - 1);
    if (low == high) high += 0.001;
  }
  for (int64_t pair = 0; pair < rotary_dim / 2; ++pair) {
    double frequency = std::pow(base, -2 * static_cast<double>(pair) / dims);
    if (s.type == "linear") frequency /= s.factor;
    if (s.type == "llama3") frequency = llama3(frequency, s);
    if (s.type == "longrope") frequency /= s.pair_factors[static_cast<size_t>(pair)];
    if (s.type == "yarn") {
      const double slowed = std::clamp((static_cast<double>(pair) - low) / (high - low), 0.0, 1.0);
      frequency = slowed * frequency / s.factor + (1 - slowed) * frequency;
    }
    out.per_pair.push_back(frequency);
  }
  if (s.attention_factor > 0) {
    out.attention_factor = s.attention_factor;
  } else if (s.type == "yarn" && s.factor > 1) {
    out.attention_factor = 0.1 * std::log(s.factor) + 1;
  } else if (s.type == "longrope" && s.factor > 1) {
    out.attention_factor = std::sqrt(1 + std::log(s.factor) / std::log(static_cast<double>(s.original_length)));
  }
  return out;
}

}  // namespace lazy::ops
