#include "report/plot.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "core/text.h"
#include "report/html.h"
#include "report/svg.h"

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

void draw_mark(Svg& svg, double x, double y, int shape, const std::string& css_class) {
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

namespace {

constexpr double kPlotFont = 14;

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

void draw_legend_handle(Svg& svg, double x, double y, const Curve& curve) {
  constexpr double kLength = 24;
  svg.open_group(curve.css_class);
  if (curve.line) svg.path({{x, y}, {x + kLength, y}}, "stroke");
  draw_mark(svg, x + kLength / 2, y, curve.marker, "mark");
  svg.close_group();
}

constexpr double kHandle = 30, kGap = 16, kLine = 20;  // sizes of a legend

double legend_width(const Plot& plot) {
  double width = 0;
  for (const auto& [name, curve] : plot.legend) width += kHandle + text_width(name, kPlotFont) + kGap;
  return width;
}

// Draws the legend right-aligned at `right`.
void draw_legend(Svg& svg, const Plot& plot, double right, double baseline) {
  double x = right - legend_width(plot);
  for (const auto& [name, curve] : plot.legend) {
    x += kGap;
    draw_legend_handle(svg, x, baseline - 5, curve);
    svg.text(x + kHandle, baseline, name);
    x += kHandle + text_width(name, kPlotFont);
  }
}

}  // namespace

void XLabels::add(double x, const std::string& label) {
  const double half = text_width(label, kPlotFont) / 2, middle = std::clamp(x, half, width_ - half);
  if (middle - half < last_end_ + 4) return;
  svg_.text(middle, baseline_, label, "middle", "tick");
  last_end_ = middle + half;
}

std::string draw(const Plot& plot, double width, double height, const std::string& css_class) {
  const int y_most = std::clamp(static_cast<int>(height / 48), 3, 8);
  const auto y_ticks = plot.y_kind == Scale::Kind::log ? log_ticks(plot.y_low, plot.y_high, y_most)
                                                       : linear_ticks(plot.y_low, plot.y_high, y_most);
  double label_width = 0;
  for (const Tick& tick : y_ticks) label_width = std::max(label_width, text_width(tick.label, kPlotFont));
  const double left = label_width + 12, right = width - 10, bottom = height - 46;
  // The legend is in the line of the y axis name, or in the line below it if the line is too short for both.
  const bool beside = plot.legend.empty() || legend_width(plot) + text_width(plot.y_label, kPlotFont) <= right;
  const double top = beside ? 30 : 30 + kLine;
  const Scale x{plot.x_kind, plot.x_low, plot.x_high, left, right};
  const Scale y{plot.y_kind, plot.y_low, plot.y_high, bottom, top};

  Svg svg(width, height, plot.label, css_class);
  svg.text(0, 14, plot.y_label, "start", "axis-name");
  svg.text(right, height - 4, plot.x_label, "end", "axis-name");
  draw_legend(svg, plot, right, beside ? 14 : 14 + kLine);
  for (const Tick& tick : y_ticks) {
    svg.line(left, y(tick.value), right, y(tick.value), "grid");
    svg.text(left - 8, y(tick.value) + 5, tick.label, "end", "tick");
  }
  XLabels labels(svg, width, bottom + 20);
  for (const Tick& tick : x_ticks(plot, right - left)) {
    const double at = x(tick.value);
    svg.line(at, bottom, at, bottom + 5, "axis");
    labels.add(at, tick.label);
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
      for (const auto& [px, py] : points) draw_mark(svg, px, py, curve.marker, "mark");
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
  draw_legend_handle(svg, 1, 6, {{}, css_class, line, marker});
  return svg.str();
}

bool fit_axes(Plot& plot) {
  constexpr double kNone = std::numeric_limits<double>::infinity();
  double x_low = kNone, x_high = -kNone, y_low = kNone, y_high = -kNone;
  for (const Curve& curve : plot.curves) {
    for (const auto& [x, y] : curve.points) {
      x_low = std::min(x_low, x), x_high = std::max(x_high, x);
      if (std::isfinite(y)) y_low = std::min(y_low, y), y_high = std::max(y_high, y);
    }
  }
  if (x_low > x_high) return false;
  plot.x_low = x_low, plot.x_high = x_high;
  if (y_low <= y_high) plot.y_low = y_low, plot.y_high = y_high;
  return true;
}

void add_room(double& low, double& high) {
  const double room = high > low ? (high - low) / 20 : 1;
  low -= room, high += room;
}

}  // namespace lazy::report
