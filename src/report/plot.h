// Line and dot plots with axes, drawn as SVG.
#pragma once
#include <string>
#include <utility>
#include <vector>

#include "report/svg.h"

namespace lazy::report {

// Maps data to coordinates along one axis.
struct Scale {
  enum class Kind { linear, log1p, log };  // log1p: position by ln(1 + x), for distances that start at zero
  Kind kind = Kind::linear;
  double low = 0, high = 1;  // data
  double from = 0, to = 1;   // coordinates; from > to reverses the axis
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
// Smallest number >= value of the form {1, 1.5, 2, 3, 4, 5, 6, 8} x 10^n: the upper end of a colour bar.
double round_up(double value);

struct Curve {
  std::vector<std::pair<double, double>> points;
  std::string css_class;  // "curve s0", "curve faint s1", "dots s0"; s0..s7 choose the colour
  bool line = true;
  int marker = -1;  // -1 none, 0 circle, 1 square, 2 triangle, 3 diamond: shapes help colour-blind readers
};

struct Plot {
  std::string label;  // the whole picture in a sentence, for screen readers
  std::string x_label, y_label;
  Scale::Kind x_kind = Scale::Kind::linear, y_kind = Scale::Kind::linear;
  double x_low = 0, x_high = 1, y_low = 0, y_high = 1;
  enum class XTicks { numbers, counts, distances, integers, powers } x_ticks = XTicks::numbers;
  std::vector<Curve> curves;
  std::vector<std::pair<double, std::string>> references;  // horizontal lines with a label
  std::vector<std::pair<std::string, Curve>> legend;       // names of curves, which need no points; above the plot
};

// Sets the axes' ranges to those of the curves' points. False where there are none: then the ranges stay.
bool fit_axes(Plot& plot);
// A twentieth of the range on both sides; 1 around a single value.
void add_room(double& low, double& high);

// Text is 14 units high at every size, so that it stays legible on narrow pages.
std::string draw(const Plot& plot, double width, double height, const std::string& css_class = "");

// The three sizes of a full-width figure; the style sheet shows the one that fits.
std::string draw_responsive(const Plot& plot);

// Labels of an x axis, from left to right: moved inwards at the drawing's ends, left out where they would overlap.
class XLabels {
 public:
  XLabels(Svg& svg, double width, double baseline) : svg_(svg), width_(width), baseline_(baseline) {}
  void add(double x, const std::string& label);

 private:
  Svg& svg_;
  double width_, baseline_, last_end_ = -1e9;
};

// A filled shape with its middle at (x, y): 0 circle, 1 square, 2 triangle, 3 diamond; none for other numbers.
void draw_mark(Svg& svg, double x, double y, int shape, const std::string& css_class);

// An inline swatch for a legend: a short line with the marker.
std::string swatch(const std::string& css_class, int marker, bool line = true);

}  // namespace lazy::report
