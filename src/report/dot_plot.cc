#include "report/dot_plot.h"

#include <algorithm>

#include "report/plot.h"
#include "report/style.h"
#include "report/svg.h"

namespace lazy::report {

namespace {

constexpr double kDotPlotFont = 14, kRow = 24, kTop = 26, kBottom = 46;

}  // namespace

double height_of(const DotPlot& plot) { return kTop + kRow * static_cast<double>(plot.rows.size()) + kBottom; }

std::string draw(const DotPlot& plot, double width) {
  std::vector<double> all;
  double names = 0;
  for (const DotRow& row : plot.rows) {
    names = std::max(names, text_width(row.name, kDotPlotFont));
    for (const auto& [mark, value] : row.values) all.push_back(value);
    if (row.interval) all.insert(all.end(), {row.interval->low, row.interval->high});
  }
  if (plot.reference) all.push_back(plot.reference->first);
  double low = 0, high = 1;
  if (!all.empty()) {
    const auto [least, most] = std::minmax_element(all.begin(), all.end());
    const double room = *most > *least ? (*most - *least) / 20 : 1;
    low = *least - room, high = *most + room;
  }
  const double height = height_of(plot), left = names + 14, right = width - 10, bottom = height - kBottom;
  const Scale x{Scale::Kind::linear, low, high, left, right};

  Svg svg(width, height, plot.label);
  XLabels labels(svg, width, bottom + 20);
  for (const Tick& tick : linear_ticks(low, high, static_cast<int>((right - left) / 80))) {
    const double at = x(tick.value);
    svg.line(at, kTop, at, bottom, "grid");
    labels.add(at, tick.label);
  }
  svg.line(left, bottom, right, bottom, "axis");
  svg.text(right, height - 4, plot.x_label, "end", "axis-name");
  if (plot.reference) {
    const auto& [value, words] = *plot.reference;
    svg.line(x(value), kTop, x(value), bottom, "reference");
    const double half = text_width(words, kDotPlotFont) / 2;
    svg.text(std::clamp(x(value), half, width - half), 14, words, "middle", "reference-name");
  }
  for (size_t n = 0; n < plot.rows.size(); ++n) {
    const DotRow& row = plot.rows[n];
    const double y = kTop + kRow * (static_cast<double>(n) + 0.5);
    svg.text(left - 10, y + 5, row.name, "end");
    svg.open_group("curve " + series_class(row.series));
    if (row.interval) svg.line(x(row.interval->low), y, x(row.interval->high), y, "stroke");
    for (const auto& [mark, value] : row.values) draw_mark(svg, x(value), y, mark % kSeriesMarks, "mark");
    svg.close_group();
  }
  return svg.str();
}

}  // namespace lazy::report
