// Loss against tokens.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "core/text.h"
#include "report/palette.h"
#include "report/plot.h"
#include "report/sections.h"

namespace lazy::report {
namespace {

// Exponential moving average with a window that grows with the run, corrected for its start, thinned for drawing.
Curve2d smooth(const Curve2d& curve) {
  const double keep = 1 - 1 / std::max(1.0, double(curve.size()) / 60);
  const size_t step = std::max<size_t>(1, curve.size() / 400);
  Curve2d result;
  double sum = 0, weight = 0;
  for (size_t i = 0; i < curve.size(); ++i) {
    if (std::isfinite(curve[i].second)) {
      sum = keep * sum + (1 - keep) * curve[i].second;
      weight = keep * weight + (1 - keep);
    }
    if (weight > 0 && (i % step == 0 || i + 1 == curve.size())) result.emplace_back(curve[i].first, sum / weight);
  }
  return result;
}

}  // namespace

std::string learning_curves(const std::vector<RunData>& runs) {
  Plot plot;
  plot.x_label = "training tokens";
  plot.y_label = "loss, nats per token";
  plot.x_ticks = Plot::XTicks::counts;
  double end = 0, low = 1e300, high = -1e300;
  std::string ends;
  for (const RunData& run : runs) {
    for (const Curve2d* curve : {&run.train_loss, &run.validation_loss}) {
      if (!curve->empty()) end = std::max(end, curve->back().first);
    }
  }
  for (size_t i = 0; i < runs.size(); ++i) {
    const std::string color = fmt::format("s{}", i % kSeriesColors);
    Curve train{smooth(runs[i].train_loss), "curve faint " + color};
    Curve validation{runs[i].validation_loss, "curve " + color, true, static_cast<int>(i % 4)};
    // The first moments of training would press everything else flat: the axis starts where 3 % of the run are over.
    for (const Curve* curve : {&train, &validation}) {
      for (const auto& [tokens, loss] : curve->points) {
        if (!std::isfinite(loss)) continue;
        low = std::min(low, loss);
        if (tokens >= 0.03 * end) high = std::max(high, loss);
      }
    }
    if (!train.points.empty()) plot.curves.insert(plot.curves.begin(), train);  // below all validation curves
    if (!validation.points.empty()) {
      ends += fmt::format("; {} ends at {:.3f}", runs[i].name, validation.points.back().second);
      plot.curves.push_back(validation);
    }
  }
  if (plot.curves.empty() || !(high >= low)) return "";
  const double margin = std::max(0.04 * (high - low), 1e-3);
  plot.x_high = end;
  plot.y_low = low - margin;
  plot.y_high = high + margin;
  plot.label = "Loss against training tokens" + ends;
  std::string commands;
  for (const RunData& run : runs) commands += (commands.empty() ? "" : ", ") + code("lazy train " + (run.folder / "config.toml").string());
  return figure(legend(runs) + draw_responsive(plot),
                "Strong lines with marks: loss on the validation split. Faint lines: training loss, smoothed. Lower is better; the first "
                "3\u2009% of training may lie above the frame. Made by " + commands + ".");
}

}  // namespace lazy::report
