#include "eval/compare/statistics.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <random>

#include "core/statistics.h"

namespace lazy::eval {
namespace {

// The continued fraction of I_x(a, b) by Lentz's method; converges fast for x < (a + 1) / (a + b + 2).
double beta_fraction(double a, double b, double x) {
  constexpr double kTiny = 1e-300, kEnough = 1e-16;
  const auto away_from_zero = [](double value) { return std::abs(value) < kTiny ? kTiny : value; };
  double c = 1, d = 1 / away_from_zero(1 - (a + b) * x / (a + 1)), fraction = d;
  for (int m = 1; m <= 10000; ++m) {
    double step = 1;
    for (const double coefficient : {m * (b - m) * x / ((a + 2 * m - 1) * (a + 2 * m)),
                                     -(a + m) * (a + b + m) * x / ((a + 2 * m) * (a + 2 * m + 1))}) {
      d = 1 / away_from_zero(1 + coefficient * d);
      c = away_from_zero(1 + coefficient / c);
      step = c * d;
      fraction *= step;
    }
    if (std::abs(step - 1) < kEnough) break;
  }
  return fraction;
}

double sum_of_units(const std::vector<PairedDifference>& group) {
  double units = 0;
  for (const auto& document : group) units += document.units;
  return units;
}

// Uniform in [0, count): the high half of a product. (std::uniform_int_distribution differs between libraries.)
size_t draw(std::mt19937_64& generator, size_t count) {
  return static_cast<size_t>((static_cast<unsigned __int128>(generator()) * count) >> 64);
}

}  // namespace

double incomplete_beta(double a, double b, double x) {
  if (x <= 0) return 0;
  if (x >= 1) return 1;
  const double front =
      std::exp(std::lgamma(a + b) - std::lgamma(a) - std::lgamma(b) + a * std::log(x) + b * std::log1p(-x));
  if (x < (a + 1) / (a + b + 2)) return front * beta_fraction(a, b, x) / a;
  return 1 - front * beta_fraction(b, a, 1 - x) / b;
}

double student_two_sided(double t, double degrees) {
  if (std::isinf(t)) return 0;
  return incomplete_beta(degrees / 2, 0.5, degrees / (degrees + t * t));
}

double estimate(const Groups& groups) {
  double total = 0;
  for (const auto& group : groups) {
    double sum = 0;
    for (const auto& document : group) sum += document.difference;
    total += sum / sum_of_units(group);
  }
  return total / static_cast<double>(groups.size());
}

TTest paired_t_test(const Groups& groups) {
  constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();
  double mean = 0, variance = 0, spread = 0;
  for (const auto& group : groups) {
    const auto n = static_cast<double>(group.size());
    if (group.size() < 2) return {kNaN, 0, kNaN};
    double group_mean = 0, squares = 0;
    for (const auto& document : group) group_mean += document.difference / n;
    for (const auto& document : group)
      squares += (document.difference - group_mean) * (document.difference - group_mean);
    // A group's estimate is its mean difference times documents per unit.
    const double scale = n / sum_of_units(group), of_mean = squares / (n - 1) / n * scale * scale;
    mean += group_mean * scale;
    variance += of_mean;
    spread += of_mean * of_mean / (n - 1);
  }
  if (variance == 0) {
    if (mean == 0) return {0, 0, 1};
    return {std::copysign(std::numeric_limits<double>::infinity(), mean), 0, 0};
  }
  TTest test;
  test.t = mean / std::sqrt(variance);
  test.degrees = variance * variance / spread;
  test.p = student_two_sided(test.t, test.degrees);
  return test;
}

Interval paired_bootstrap(const Groups& groups, double confidence, int64_t resamples, uint64_t seed) {
  std::mt19937_64 generator(seed);
  std::vector<double> estimates(static_cast<size_t>(resamples), 0.0);
  for (const auto& group : groups) {
    for (double& value : estimates) {
      double sum = 0, units = 0;
      for (size_t i = 0; i < group.size(); ++i) {
        const PairedDifference& document = group[draw(generator, group.size())];
        sum += document.difference;
        units += document.units;
      }
      value += sum / units / static_cast<double>(groups.size());
    }
  }
  const auto [low, high] = central_interval(std::move(estimates), confidence);
  return {low, high};
}

}  // namespace lazy::eval
