// Sections about training: loss against tokens, and attention statistics by layer during training.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <optional>

#include "core/text.h"
#include "report/html.h"
#include "report/plot.h"
#include "report/sections.h"
#include "report/style.h"

namespace lazy::report {

// Loss against tokens.

namespace {

// Exponential moving average whose window grows with the length of the run, with bias correction at the start, reduced
// to about 400 points.
Curve2d smooth(const Curve2d& curve) {
  const double keep = 1 - 1 / std::max(1.0, double(curve.size()) / 25);
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

// Validation loss of every run minus the loss of the softmax run at the same number of tokens. Curves that overlap in
// the previous figure can be distinguished here.
std::string difference(const std::vector<RunData>& runs) {
  const auto twin = std::find_if(runs.begin(), runs.end(), [](const RunData& r) { return r.kind == "softmax"; });
  if (twin == runs.end()) return "";
  Plot plot;
  plot.x_label = "training tokens";
  plot.y_label = "loss difference, nats per token";
  plot.x_ticks = Plot::XTicks::counts;
  plot.references.emplace_back(0, twin->name);
  plot.x_high = 0;
  double low = 0, high = 0;
  for (size_t i = 0; i < runs.size(); ++i) {
    if (&runs[i] == &*twin) continue;
    Curve curve{{}, "curve " + series_class(i), true, series_mark(i)};
    for (const auto& [tokens, loss] : runs[i].validation_loss) {
      const auto same = std::find_if(twin->validation_loss.begin(), twin->validation_loss.end(),
                                     [&](const auto& p) { return p.first == tokens; });
      if (same == twin->validation_loss.end() || !std::isfinite(loss - same->second)) continue;
      curve.points.emplace_back(tokens, loss - same->second);
      plot.x_high = std::max(plot.x_high, tokens);
      low = std::min(low, loss - same->second);
      high = std::max(high, loss - same->second);
    }
    if (curve.points.size() > 1) plot.curves.push_back(curve);
  }
  if (plot.curves.empty()) return "";
  const double margin = std::max(0.12 * (high - low), 1e-3);
  plot.y_low = low - margin;
  plot.y_high = high + margin;
  plot.label = "Validation loss minus the loss of " + twin->name + ", against training tokens";
  return figure(
      draw(plot, 1040, 250, "at-wide") + draw(plot, 640, 250, "at-middle") + draw(plot, 296, 230, "at-narrow"),
      "Validation loss minus the loss of " + html_escape(twin->name) +
          " at the same number of tokens: values below the dashed line are better "
          "than " +
          html_escape(twin->name) + ".");
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
    const std::string color = series_class(i);
    Curve train{smooth(runs[i].train_loss), "curve faint " + color};
    Curve validation{runs[i].validation_loss, "curve " + color, true, series_mark(i)};
    // The high losses at the start of training would flatten the curves, so the y axis covers only the losses after 8 %
    // of the run.
    for (const Curve* curve : {&train, &validation}) {
      for (const auto& [tokens, loss] : curve->points) {
        if (!std::isfinite(loss)) continue;
        low = std::min(low, loss);
        if (tokens >= 0.08 * end) high = std::max(high, loss);
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
  for (const RunData& run : runs)
    commands += (commands.empty() ? "" : ", ") + code("lazy train " + (run.folder / "config.toml").string());
  return figure(legend(runs) + draw_responsive(plot),
                "Strong lines with marks: validation loss during training, on a part of the validation split; the "
                "results below can cover more of it. Faint lines: training loss, smoothed. Lower is better; the first "
                "8\u2009% of training can be above the frame. Created by " +
                    commands + ".") +
         difference(runs);
}

// Attention statistics of the layers during training.

namespace {

struct Shown {
  const char *key, *title;
};
constexpr Shown kMeasures[] = {{"tau_mean", "Offset τ"},
                               {"sink_ratio", "Sink ratio"},
                               {"density", "Density"},
                               {"released_mass", "Released mass"},
                               {"alive_fraction", "Alive fraction"}};

// The layers that are drawn: all of them, or evenly spaced layers, one per series color.
std::vector<size_t> chosen(size_t count) {
  std::vector<size_t> layers;
  const size_t shown = std::min<size_t>(kSeriesColors, count);
  for (size_t k = 0; k < shown; ++k) layers.push_back(shown == 1 ? 0 : k * (count - 1) / (shown - 1));
  return layers;
}

// The common value of all points if they are equal in the printed digits; such curves are not drawn.
std::optional<double> constant_value(const std::vector<Curve2d>& curves) {
  double low = 1e300, high = -1e300;
  for (const Curve2d& curve : curves) {
    for (const auto& [tokens, value] : curve) {
      if (!std::isfinite(value)) return std::nullopt;
      low = std::min(low, value);
      high = std::max(high, value);
    }
  }
  return high - low < kFlat && high >= low ? std::optional(high) : std::nullopt;
}

std::string panel(const RunData& run, const Shown& measure, const std::vector<Curve2d>& curves) {
  Plot plot;
  plot.x_label = "training tokens";
  plot.y_label = std::string_view(measure.key) == "tau_mean" ? "τ, mean over heads" : "share";
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
  plot.label = fmt::format("{} of {} against training tokens, one line per layer", measure.title, run.name);
  return fmt::format("<div class=\"panel\"><h4>{}</h4>{}</div>", measure.title, draw(plot, 296, 230, "small"));
}

}  // namespace

std::string layer_curves(const std::vector<RunData>& runs) {
  std::string body;
  for (size_t i = 0; i < runs.size(); ++i) {
    std::string panels, layers, constants;
    size_t count = 0;
    for (const Shown& measure : kMeasures) {
      const auto found = runs[i].by_layer.find(measure.key);
      if (found == runs[i].by_layer.end()) continue;
      if (const auto value = constant_value(found->second)) {
        const bool offset = std::string_view(measure.key) == "tau_mean";
        constants += fmt::format(" {} is {} in all layers throughout.", measure.title,
                                 offset ? fixed(*value, 2) : percent(*value) + "\u2009%");
        continue;
      }
      panels += panel(runs[i], measure, found->second);
      count = std::max(count, found->second.size());
    }
    if (panels.empty()) continue;
    const auto shown = chosen(count);
    for (size_t k = 0; k < shown.size(); ++k) {
      layers += fmt::format("<span class=\"run\">{}layer {}</span>", swatch(fmt::format("s{}", k), -1), shown[k]);
    }
    body += figure(
        fmt::format("<h3>{}</h3><p class=\"legend\">{}</p><div class=\"multiples\">{}</div>", html_escape(runs[i].name),
                    layers, panels),
        fmt::format(
            "Means over heads, queries and one batch of the validation split, as training logged them.{}{}", constants,
            shown.size() < count ? fmt::format(" {} of {} layers are shown, evenly spaced.", shown.size(), count)
                                 : ""));
  }
  return body;
}

}  // namespace lazy::report
