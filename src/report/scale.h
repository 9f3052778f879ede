// Axes: from data to coordinates, and round numbers to mark on them.
#pragma once
#include <string>
#include <vector>

namespace lazy::report {

struct Scale {
  enum class Kind { linear, log1p, log };  // log1p: position by ln(1 + x), for distances that start at zero
  Kind kind = Kind::linear;
  double low = 0, high = 1;  // data
  double from = 0, to = 1;   // coordinates; from > to turns the axis round
  double operator()(double value) const;
};

struct Tick {
  double value;
  std::string label;
};

// Between 2 and `most` + 1 multiples of 1, 2, 2.5 or 5 times a power of ten within [low, high].
std::vector<Tick> linear_ticks(double low, double high, int most);
// The same with "250k", "1.5M" as labels.
std::vector<Tick> count_ticks(double low, double high, int most);
// 0, 1, 2, 4, ... or 0, 1, 4, 16, ... up to `high`, at most `most`.
std::vector<Tick> distance_ticks(double high, int most);
// Powers of two within [low, high], each or every other or ..., at most `most`: "512", "1k", "32k".
std::vector<Tick> power_ticks(double low, double high, int most);
// 1, 2 and 5 times powers of ten within [low, high], or the powers alone where that is more than `most`. low > 0.
std::vector<Tick> log_ticks(double low, double high, int most);
// "512", "1k" (1024), "1.5k" (1536): a context length.
std::string length_label(double length);
// Smallest number >= value of the form {1, 1.5, 2, 3, 4, 5, 6, 8} x 10^n: a quiet upper end for a colour bar.
double round_up(double value);

}  // namespace lazy::report
