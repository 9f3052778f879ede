#include "report/plot.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "report/format.h"
#include "report/svg.h"

namespace lazy::report {
namespace {

constexpr double kFont = 14;

void mark(Svg& svg, double x, double y, int shape, const std::string& css_class) {
  if (!std::isfinite(x) || !std::isfinite(y)) return;
  const double r = 4;
  switch (shape) {
    case 0:
      return svg.circle(x, y, r, css_class);
    case 1:
      return svg.rect(x - r + 0.4, y - r + 0.4, 2 * r - 0.8, 2 * r - 0.8, css_class);
    case 2:
      return svg.path({{x, y - r - 0.6}, {x + r + 0.4, y + r - 0.4}, {x - r - 0.4, y + r - 0.4}, {x, y - r - 0.6}},
                      css_class);
    case 3:
      return svg.path({{x, y - r - 1}, {x + r + 1, y}, {x, y + r + 1}, {x - r - 1, y}, {x, y - r - 1}}, css_class);
    default:
      return;
  }
}

std::vector<Tick> x_ticks(const Plot& plot, double width) {
  const int most = std::clamp(static_cast<int>(width / 72), 3, 12);
  switch (plot.x_ticks) {
    case Plot::XTicks::counts:
      return count_ticks(plot.x_low, plot.x_high, most);
    case Plot::XTicks::distances:
      return distance_ticks(plot.x_high, std::max(5, static_cast<int>(width / 40)));
    case Plot::XTicks::powers:
      return power_ticks(plot.x_low, plot.x_high, std::max(4, static_cast<int>(width / 44)));
    case Plot::XTicks::integers: {
      const int step = std::max(1, static_cast<int>(std::ceil((plot.x_high - plot.x_low + 1) / (width / 26))));
      std::vector<Tick> ticks;
      for (int v = static_cast<int>(std::ceil(plot.x_low)); v <= plot.x_high; v += step)
        ticks.push_back({double(v), std::to_string(v)});
      return ticks;
    }
    case Plot::XTicks::numbers:
      break;
  }
  return linear_ticks(plot.x_low, plot.x_high, most);
}

}  // namespace

std::string draw(const Plot& plot, double width, double height, const std::string& css_class) {
  const int y_most = std::clamp(static_cast<int>(height / 48), 3, 8);
  const auto y_ticks = plot.y_kind == Scale::Kind::log ? log_ticks(plot.y_low, plot.y_high, y_most)
                                                       : linear_ticks(plot.y_low, plot.y_high, y_most);
  double label_width = 0;
  for (const Tick& tick : y_ticks) label_width = std::max(label_width, text_width(tick.label, kFont));
  const double left = label_width + 12, right = width - 10, top = 30, bottom = height - 46;
  const Scale x{plot.x_kind, plot.x_low, plot.x_high, left, right};
  const Scale y{plot.y_kind, plot.y_low, plot.y_high, bottom, top};

  Svg svg(width, height, plot.label, css_class);
  svg.text(0, 14, plot.y_label, "start", "axis-name");
  svg.text(right, height - 4, plot.x_label, "end", "axis-name");
  for (const Tick& tick : y_ticks) {
    svg.line(left, y(tick.value), right, y(tick.value), "grid");
    svg.text(left - 8, y(tick.value) + 5, tick.label, "end", "tick");
  }
  double last_end = -1e9;
  for (const Tick& tick : x_ticks(plot, right - left)) {
    const double at = x(tick.value), half = text_width(tick.label, kFont) / 2;
    const double middle = std::clamp(at, half, width - half);
    svg.line(at, bottom, at, bottom + 5, "axis");
    if (middle - half < last_end + 4) continue;  // labels never overlap
    svg.text(middle, bottom + 20, tick.label, "middle", "tick");
    last_end = middle + half;
  }
  svg.line(left, bottom, right, bottom, "axis");
  for (const auto& [value, word] : plot.references) {
    svg.line(left, y(value), right, y(value), "reference");
    svg.text(right - 2, y(value) - 5, word, "end", "reference-name");
  }
  svg.push_clip(left - 5, top - 6, right - left + 10, bottom - top + 12);
  for (const Curve& curve : plot.curves) {
    std::vector<std::pair<double, double>> points;
    for (const auto& [px, py] : curve.points) points.emplace_back(x(px), y(py));
    svg.open_group(curve.css_class);
    if (curve.line) svg.path(points, "stroke");
    if (curve.marker >= 0) {
      for (const auto& [px, py] : points) mark(svg, px, py, curve.marker, "mark");
    }
    svg.close_group();
  }
  svg.pop_clip();
  return svg.str();
}

std::string draw_responsive(const Plot& plot) {
  return draw(plot, 1040, 430, "at-wide") + draw(plot, 640, 380, "at-middle") + draw(plot, 296, 320, "at-narrow");
}

std::string swatch(const std::string& css_class, int marker, bool line) {
  Svg svg(26, 12, "", "swatch");
  svg.open_group(css_class);
  if (line) svg.path({{1, 6}, {25, 6}}, "stroke");
  mark(svg, 13, 6, marker, "mark");
  svg.close_group();
  return svg.str();
}

}  // namespace lazy::report
