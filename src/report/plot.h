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

// Ticks at multiples of 1, 2, 2.5 or 5 times a power of ten within [low, high]; between 2 and `most` + 1 ticks.
std::vector<Tick> linear_ticks(double low, double high, int most);
// Like linear_ticks, with labels such as "250k" and "1.5M".
std::vector<Tick> count_ticks(double low, double high, int most);
// Ticks at 0, 1, 2, 4, ... or 0, 1, 4, 16, ... up to `high`; at most `most` ticks.
std::vector<Tick> distance_ticks(double high, int most);
// Ticks at powers of two within [low, high]: every power, every second power, and so on, so that there are at most
// `most` ticks: "512", "1k", "32k".
std::vector<Tick> power_ticks(double low, double high, int most);
// Ticks at 1, 2 and 5 times powers of ten within [low, high], or only at powers of ten if there would be more than
// `most`. low must be above 0.
std::vector<Tick> log_ticks(double low, double high, int most);
// A context length as text: "512", "1k" (1024), "1.5k" (1536).
std::string length_label(double length);
// The smallest number >= value of the form {1, 1.5, 2, 3, 4, 5, 6, 8} x 10^n; used as the upper end of a color bar.
double round_up(double value);

struct Curve {
  std::vector<std::pair<double, double>> points;
  std::string css_class;  // "curve s0", "curve faint s1", "dots s0"; s0..s7 select the color
  bool line = true;
  int marker = -1;  // -1 none, 0 circle, 1 square, 2 triangle, 3 diamond: shapes for color-blind readers
};

struct Plot {
  std::string label;  // one sentence that describes the plot for screen readers
  std::string x_label, y_label;
  Scale::Kind x_kind = Scale::Kind::linear, y_kind = Scale::Kind::linear;
  double x_low = 0, x_high = 1, y_low = 0, y_high = 1;
  enum class XTicks { numbers, counts, distances, integers, powers } x_ticks = XTicks::numbers;
  std::vector<Curve> curves;
  std::vector<std::pair<double, std::string>> references;  // horizontal lines: value and label
  std::vector<std::pair<std::string, Curve>> legend;       // above the plot; curves without points
};

// Sets the axis ranges to the ranges of the curves' points. Returns false and leaves the ranges unchanged if there are
// none.
bool fit_axes(Plot& plot);
// Extends a range by a twentieth on both sides, or by 1 if it contains a single value.
void add_room(double& low, double& high);

// Text is 14 units high at every plot size, so that it stays legible on narrow pages.
std::string draw(const Plot& plot, double width, double height, const std::string& css_class = "");

// Draws a full-width figure in three sizes; the style sheet shows the size that fits.
std::string draw_responsive(const Plot& plot);

// Draws the labels of an x axis from left to right. Labels at the ends are moved inwards, and labels that would overlap
// are omitted.
class XLabels {
 public:
  XLabels(Svg& svg, double width, double baseline) : svg_(svg), width_(width), baseline_(baseline) {}
  void add(double x, const std::string& label);

 private:
  Svg& svg_;
  double width_, baseline_, last_end_ = -1e9;
};

// Draws a filled mark centered at (x, y): 0 circle, 1 square, 2 triangle, 3 diamond; other numbers draw nothing.
void draw_mark(Svg& svg, double x, double y, int shape, const std::string& css_class);

// An inline swatch for a legend: a short line with the marker.
std::string swatch(const std::string& css_class, int marker, bool line = true);

}  // namespace lazy::report
