#include "report/scale.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "core/text.h"
#include "report/format.h"

namespace lazy::report {

double Scale::operator()(double value) const {
  const auto place = [this](double x) {
    return kind == Kind::linear  ? x
           : kind == Kind::log1p ? std::log1p(std::max(0.0, x))
                                 : std::log(std::max(1e-300, x));
  };
  const double span = place(high) - place(low);
  return span == 0 ? (from + to) / 2 : from + (to - from) * (place(value) - place(low)) / span;
}

namespace {

std::vector<double> round_values(double low, double high, int most, double* step_out) {
  *step_out = 0;
  if (!(high > low) || !std::isfinite(high - low)) return {low};
  const double rough = (high - low) / std::max(1, most);
  const double power = std::pow(10, std::floor(std::log10(rough)));
  double step = 10 * power;
  for (double factor : {1.0, 2.0, 2.5, 5.0}) {
    if (factor * power >= rough * (1 - 1e-9)) {
      step = factor * power;
      break;
    }
  }
  std::vector<double> values;
  const auto last = static_cast<int64_t>(std::floor(high / step + 1e-9));
  for (auto k = static_cast<int64_t>(std::ceil(low / step - 1e-9)); k <= last; ++k) values.push_back(double(k) * step);
  *step_out = step;
  return values;
}

int decimals(double step) {
  int digits = 0;
  while (digits < 6 && std::fabs(step - std::round(step)) > 1e-6 * step) step *= 10, ++digits;
  return digits;
}

}  // namespace

std::vector<Tick> linear_ticks(double low, double high, int most) {
  double step = 0;
  std::vector<Tick> ticks;
  for (double v : round_values(low, high, most, &step)) ticks.push_back({v, fixed(v, step > 0 ? decimals(step) : 2)});
  return ticks;
}

std::vector<Tick> count_ticks(double low, double high, int most) {
  double step = 0;
  std::vector<Tick> ticks;
  for (double v : round_values(low, high, most, &step)) ticks.push_back({v, v == 0 ? "0" : human_count(v)});
  return ticks;
}

std::vector<Tick> distance_ticks(double high, int most) {
  std::vector<Tick> ticks;
  for (double factor = 2; factor <= 1024; factor *= 2) {
    ticks = {{0, "0"}};
    for (double v = 1; v <= high * (1 + 1e-9); v *= factor) ticks.push_back({v, fmt::format("{:.0f}", v)});
    if (static_cast<int>(ticks.size()) <= most) break;
  }
  return ticks;
}

std::string length_label(double length) {
  return length < 1024 ? fmt::format("{:g}", length) : fmt::format("{:.3g}k", length / 1024);
}

std::vector<Tick> power_ticks(double low, double high, int most) {
  std::vector<Tick> ticks;
  for (int step = 1; step < 16; ++step) {
    ticks.clear();
    for (int power = static_cast<int>(std::ceil(std::log2(std::max(1.0, low)) - 1e-9));
         std::exp2(power) <= high * (1 + 1e-9); power += step) {
      ticks.push_back({std::exp2(power), length_label(std::exp2(power))});
    }
    if (static_cast<int>(ticks.size()) <= most) break;
  }
  return ticks;
}

std::vector<Tick> log_ticks(double low, double high, int most) {
  std::vector<Tick> ticks, tens;
  for (int power = static_cast<int>(std::floor(std::log10(low))); std::pow(10, power) <= high; ++power) {
    for (double factor : {1.0, 2.0, 5.0}) {
      const double value = factor * std::pow(10, power);
      if (value < low || value > high) continue;
      ticks.push_back({value, value < 1e3   ? fmt::format("{:g}", value)
                              : value < 1e6 ? fmt::format("{:g}k", value / 1e3)
                                            : fmt::format("{:g}M", value / 1e6)});
      if (factor == 1.0) tens.push_back(ticks.back());
    }
  }
  return static_cast<int>(ticks.size()) > most && tens.size() >= 2 ? tens : ticks;
}

double round_up(double value) {
  if (!(value > 0) || !std::isfinite(value)) return 1;
  const double power = std::pow(10, std::floor(std::log10(value)));
  for (double factor : {1.0, 1.5, 2.0, 3.0, 4.0, 5.0, 6.0, 8.0, 10.0}) {
    if (factor * power >= value * (1 - 1e-9)) return factor * power;
  }
  return 10 * power;
}

}  // namespace lazy::report
