// How the layers spread their attention, over the course of training.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "core/text.h"
#include "report/palette.h"
#include "report/plot.h"
#include "report/sections.h"

namespace lazy::report {
namespace {

struct Shown {
  const char *key, *title;
};
constexpr Shown kMeasures[] = {{"tau_mean", "Offset τ"},
                               {"sink_ratio", "Sink ratio"},
                               {"density", "Density"},
                               {"released_mass", "Released mass"},
                               {"alive_fraction", "Alive fraction"}};

// Which of `count` layers are drawn: all, or as many as there are colours, evenly spaced.
std::vector<size_t> chosen(size_t count) {
  std::vector<size_t> layers;
  const size_t shown = std::min<size_t>(kSeriesColors, count);
  for (size_t k = 0; k < shown; ++k) layers.push_back(shown == 1 ? 0 : k * (count - 1) / (shown - 1));
  return layers;
}

std::string panel(const RunData& run, const Shown& measure, const std::vector<Curve2d>& curves) {
  Plot plot;
  plot.x_label = "training tokens";
  plot.y_label = std::string_view(measure.key) == "tau_mean" ? "τ, mean of the heads" : "share";
  plot.x_ticks = Plot::XTicks::counts;
  plot.x_high = 0;
  double low = 1e300, high = -1e300;
  const auto layers = chosen(curves.size());
  for (size_t k = 0; k < layers.size(); ++k) {
    Curve line{{}, fmt::format("curve s{}", k)};
    for (const auto& [tokens, value] : curves[layers[k]]) {
      if (!std::isfinite(value)) continue;
      line.points.emplace_back(tokens, value);
      plot.x_high = std::max(plot.x_high, tokens);
      low = std::min(low, value);
      high = std::max(high, value);
    }
    if (line.points.size() > 1) plot.curves.push_back(line);
  }
  if (plot.curves.empty()) return "";
  const double margin = std::max(0.08 * (high - low), 1e-3);
  plot.y_low = low - margin;
  plot.y_high = high + margin;
  plot.label = fmt::format("{} of {} against training tokens, one line a layer", measure.title, run.name);
  return fmt::format("<div class=\"panel\"><h4>{}</h4>{}</div>", measure.title, draw(plot, 296, 230, "small"));
}

}  // namespace

std::string layer_curves(const std::vector<RunData>& runs) {
  std::string body;
  for (size_t i = 0; i < runs.size(); ++i) {
    std::string panels, layers;
    size_t count = 0;
    for (const Shown& measure : kMeasures) {
      const auto found = runs[i].by_layer.find(measure.key);
      if (found == runs[i].by_layer.end()) continue;
      panels += panel(runs[i], measure, found->second);
      count = std::max(count, found->second.size());
    }
    if (panels.empty()) continue;
    const auto shown = chosen(count);
    for (size_t k = 0; k < shown.size(); ++k) {
      layers += fmt::format("<span class=\"run\">{}layer {}</span>", swatch(fmt::format("s{}", k), -1), shown[k] + 1);
    }
    body +=
        figure(fmt::format("<h3>{}</h3><p class=\"legend\">{}</p><div class=\"multiples\">{}</div>",
                           html_escape(runs[i].name), layers, panels),
               fmt::format(
                   "Means over heads, queries and one batch of the validation split, as training logged them.{}",
                   shown.size() < count ? fmt::format(" {} of {} layers are shown, evenly spaced.", shown.size(), count)
                                        : ""));
  }
  return body;
}

}  // namespace lazy::report
