// Axes: from data to coordinates, and round numbers to mark on them.
#pragma once
#include <string>
#include <vector>

namespace lazy::report {

struct Scale {
  enum class Kind { linear, log1p };  // log1p: position by ln(1 + x), for distances that start at zero
  Kind kind = Kind::linear;
  double low = 0, high = 1;           // data
  double from = 0, to = 1;            // coordinates; from > to turns the axis round
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
// Smallest number >= value of the form {1, 1.5, 2, 3, 4, 5, 6, 8} x 10^n: a quiet upper end for a colour bar.
double round_up(double value);

}  // namespace lazy::report
