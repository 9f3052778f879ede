// Line and dot plots with axes, drawn as SVG at a given size. Text is 14 units high at every size, so that a picture
// drawn as wide as the page's column is as legible on a phone as on a desk; wide pages get a wider drawing.
#pragma once
#include <string>
#include <utility>
#include <vector>

#include "report/scale.h"

namespace lazy::report {

struct Curve {
  std::vector<std::pair<double, double>> points;
  std::string css_class;  // "curve s0", "curve faint s1", "dots s0"; s0..s7 choose the colour
  bool line = true;
  int marker = -1;  // -1 none, 0 circle, 1 square, 2 triangle, 3 diamond: shape tells apart what colour may not
};

struct Plot {
  std::string label;  // the whole picture in a sentence, for screen readers
  std::string x_label, y_label;
  Scale::Kind x_kind = Scale::Kind::linear, y_kind = Scale::Kind::linear;
  double x_low = 0, x_high = 1, y_low = 0, y_high = 1;
  enum class XTicks { numbers, counts, distances, integers, powers } x_ticks = XTicks::numbers;
  std::vector<Curve> curves;
  std::vector<std::pair<double, std::string>> references;  // horizontal lines with a word
};

std::string draw(const Plot& plot, double width, double height, const std::string& css_class = "");

// The three sizes of a full-width figure; the style sheet shows the one that fits.
std::string draw_responsive(const Plot& plot);

// An inline swatch for a legend: a short line with the marker.
std::string swatch(const std::string& css_class, int marker, bool line = true);

}  // namespace lazy::report
