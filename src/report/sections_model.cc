// Sections about one model: learned offsets and distance biases, and the measures of lazy sinks --measures.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "core/text.h"
#include "report/heat_map.h"
#include "report/html.h"
#include "report/plot.h"
#include "report/sections.h"
#include "report/style.h"

namespace lazy::report {

// Learned parameters of the heads other than weight matrices: offsets and distance biases.

namespace {

constexpr size_t kMaxLayers = 12;  // maximum number of plots; deeper models show evenly spaced layers

double mean(const std::vector<double>& values) {
  double sum = 0;
  for (double v : values) sum += v;
  return sum / double(std::max<size_t>(1, values.size()));
}

struct Range {
  double low = 1e300, high = -1e300;
  void include(double v) {
    if (std::isfinite(v)) low = std::min(low, v), high = std::max(high, v);
  }
  void widen() {
    const double margin = std::max(0.08 * (high - low), 1e-3);
    low -= margin;
    high += margin;
  }
};

Plot offsets_plot(const std::vector<std::vector<double>>& tau, double initial, const std::string& name,
                  const std::string& color, Range range) {
  Plot plot;
  plot.x_label = "layer";
  plot.y_label = "offset τ";
  plot.x_ticks = Plot::XTicks::integers;
  plot.x_low = -0.5;
  plot.x_high = double(tau.size()) - 0.5;
  plot.y_low = range.low;
  plot.y_high = range.high;
  plot.references.emplace_back(initial, "initial");
  Curve heads{{}, "dots " + color, false, 0}, line{{}, "curve " + color, true, -1};
  std::string summary;
  for (size_t l = 0; l < tau.size(); ++l) {
    for (double v : tau[l]) heads.points.emplace_back(double(l), v);
    line.points.emplace_back(double(l), mean(tau[l]));
    if (tau.size() <= 12) summary += fmt::format("{} layer {}: {:.2f}", l ? "," : "", l, mean(tau[l]));
  }
  plot.curves = {line, heads};
  plot.label = fmt::format("Learned offsets of {} by layer; means:{}", name, summary);
  return plot;
}

// About 90 distances or fewer, evenly spaced on the logarithmic axis.
std::vector<size_t> sampled_distances(size_t window) {
  std::vector<size_t> result;
  for (int k = 0; k <= 90; ++k) {
    const auto d = static_cast<size_t>(std::lround(std::expm1(std::log1p(double(window - 1)) * k / 90)));
    if (result.empty() || d > result.back()) result.push_back(d);
  }
  return result;
}

}  // namespace

std::string learned_offsets(const std::vector<RunData>& runs) {
  Range range;
  for (const RunData& run : runs) {
    for (const auto& row : run.learned.tau) {
      for (double v : row) range.include(v);
    }
    if (!run.learned.tau.empty()) range.include(run.learned.tau_initial);
  }
  if (range.low > range.high) return "";
  range.widen();
  std::string panels;
  for (size_t i = 0; i < runs.size(); ++i) {
    if (runs[i].learned.tau.empty()) continue;
    const std::string color = series_class(i);
    const Plot plot = offsets_plot(runs[i].learned.tau, runs[i].learned.tau_initial, runs[i].name, color, range);
    panels += fmt::format(
        "<div class=\"panel\"><h4>{}</h4>{}</div>", run_name(runs, i),
        draw(plot, 640, 300, "at-wide") + draw(plot, 640, 300, "at-middle") + draw(plot, 296, 260, "at-narrow"));
  }
  return figure("<div class=\"stack\">" + panels + "</div>",
                "A dot is a head; the line is the mean of the layer. Weight = ReLU(softmax + τ / i): the more negative "
                "τ is, the more weight the head releases; zero is plain softmax. Read from the trained model.");
}

std::string learned_distance_bias(const std::vector<RunData>& runs) {
  std::string body;
  for (size_t i = 0; i < runs.size(); ++i) {
    const auto& bias = runs[i].learned.distance_bias;
    if (bias.empty()) continue;
    Range range;
    for (const auto& layer : bias) {
      for (const auto& head : layer) {
        for (double v : head) range.include(v);
      }
    }
    if (range.low > range.high) continue;
    range.widen();
    std::vector<size_t> layers;
    const size_t shown = std::min(kMaxLayers, bias.size());
    for (size_t k = 0; k < shown; ++k) layers.push_back(shown == 1 ? 0 : k * (bias.size() - 1) / (shown - 1));
    std::string panels;
    for (size_t l : layers) {
      Plot plot;
      plot.x_label = "distance, tokens";
      plot.y_label = "bias";
      plot.x_kind = Scale::Kind::log1p;
      plot.x_ticks = Plot::XTicks::distances;
      plot.x_high = double(bias[l].front().size() - 1);
      plot.y_low = range.low;
      plot.y_high = range.high;
      plot.references.emplace_back(0, "");
      plot.label =
          fmt::format("Distance bias of {}, layer {}, one line for each of {} heads", runs[i].name, l, bias[l].size());
      Curve average{{}, "curve " + series_class(i)};
      const auto distances = sampled_distances(bias[l].front().size());
      for (size_t d : distances) average.points.emplace_back(double(d), 0);
      for (const auto& head : bias[l]) {
        Curve line{{}, "curve thin " + series_class(i)};
        for (size_t k = 0; k < distances.size(); ++k) {
          line.points.emplace_back(double(distances[k]), head[distances[k]]);
          average.points[k].second += head[distances[k]] / double(bias[l].size());
        }
        plot.curves.push_back(line);
      }
      plot.curves.push_back(average);
      panels += fmt::format("<div class=\"panel\"><h4>Layer {}</h4>{}</div>", l, draw(plot, 296, 230, "small"));
    }
    const std::string note =
        shown < bias.size() ? fmt::format(" {} of {} layers are shown, evenly spaced.", shown, bias.size()) : "";
    body +=
        figure(fmt::format("<p class=\"legend\">{}</p><div class=\"multiples\">{}</div>", run_name(runs, i), panels),
               "The bias that is added to a score, by distance between query and key (0 is the token itself; the axis "
               "is logarithmic). Thin lines: heads; strong line: their mean. Positive values increase attention to a "
               "distance, negative values reduce it." +
                   note + " Read from the trained model.");
  }
  return body;
}

// Results of `lazy sinks --measures`: Sink_k for every k, entropy, norms and variances by position, massive
// activations, collapse of hidden states.

namespace {

constexpr double kPanelWidth = 296, kPanelHeight = 240;

std::string panel(const std::string& title, const std::string& picture) {
  return "<div class=\"panel\"><h4>" + html_escape(title) + "</h4>" + picture + "</div>";
}

// One curve per row, each in one color. The first value is at `first` on the x axis. The y axis is logarithmic if the
// values are positive and span more than a factor of 20.
std::string row_curves(const std::vector<std::vector<double>>& rows, const std::string& x_label,
                       const std::string& y_label, double first = 1) {
  Plot plot;
  plot.label = y_label + " by " + x_label;
  plot.x_label = x_label;
  plot.y_label = y_label;
  double low = 1e300, high = -1e300;
  size_t longest = 2;
  for (const auto& row : rows) {
    for (const double v : row) {
      if (std::isfinite(v)) low = std::min(low, v), high = std::max(high, v);
    }
    longest = std::max(longest, row.size());
  }
  if (high < low) return "";
  const bool log = low > 0 && high > 20 * low;
  plot.y_kind = log ? Scale::Kind::log : Scale::Kind::linear;
  plot.y_low = log ? low / 1.2 : std::min(0.0, low);
  plot.y_high = log ? high * 1.2 : std::max(1e-9, 1.05 * high);
  plot.x_low = first;
  plot.x_high = first + static_cast<double>(longest - 1);
  plot.x_ticks = Plot::XTicks::integers;
  for (size_t r = 0; r < rows.size(); ++r) {
    Curve curve{{}, "curve thin " + series_class(rows.size() > 1 ? r : 0), true, -1};
    for (size_t n = 0; n < rows[r].size(); ++n) curve.points.emplace_back(first + static_cast<double>(n), rows[r][n]);
    plot.curves.push_back(std::move(curve));
  }
  return draw(plot, kPanelWidth, kPanelHeight, "small");
}

std::string entropy_map(const FurtherReport& further) {
  // The heat map needs fractions, so entropies are divided by the largest value in the table.
  HeatMap map;
  map.label = "Attention entropy by layer and head, as a share of the highest";
  double high = 1e-12;
  for (const auto& row : further.entropy) high = std::max(high, *std::max_element(row.begin(), row.end()));
  for (const auto& row : further.entropy) {
    map.values.emplace_back();
    for (const double v : row) map.values.back().push_back(v / high);
  }
  return panel(fmt::format("Entropy, % of {} nats", fixed(high, 2)), draw(map));
}

std::string massive_table(const std::vector<FurtherReport::Massive>& places) {
  Table table{.column_scope = false,
              .columns = {{"hidden state"},
                          {"massive entries per sample"},
                          {"largest |a|"},
                          {"at position"},
                          {"dimension"},
                          {"median |a|"}}};
  for (size_t n = 0; n < places.size(); ++n) {
    const auto& m = places[n];
    table.rows.push_back(
        {n + 1 < places.size() ? fmt::format("before layer {}", n) : std::string("after the last layer"),
         {fmt::format("{:.1f}", m.per_sample), fmt::format("{:.4g}", m.largest), std::to_string(m.position + 1),
          std::to_string(m.dimension), fmt::format("{:.3g}", m.median)}});
  }
  return to_html(table);
}

}  // namespace

std::string further_measures(const std::vector<RunData>& runs) {
  std::string body;
  for (size_t i = 0; i < runs.size(); ++i) {
    if (!runs[i].sinks) continue;
    const FurtherReport& further = runs[i].sinks->further;
    std::string panels, rest;
    if (!further.sink_k.empty()) {
      std::vector<double> percents = further.sink_k;
      for (double& v : percents) v *= 100;
      panels += panel("Sink_k, % of heads", row_curves({percents}, "k", "Sink_k, %")) + entropy_map(further);
    }
    for (const auto& [place, values] : further.vectors) {
      panels += panel(place + ": norm", row_curves(values.first, "position", "L2 norm")) +
                panel(place + ": variance", row_curves(values.second, "position", "variance"));
    }
    if (!further.cosine.empty()) {
      panels +=
          panel("Pairwise cosine of hidden states", row_curves({further.cosine}, "place", "cosine", 0)) +
          panel("Effective rank of hidden states", row_curves({further.effective_rank}, "place", "effective rank", 0));
    }
    if (!further.massive.empty())
      rest = figure(
          massive_table(further.massive),
          "Massive: |a| above 100 and above 1000 times the median |a| of that hidden state. Dimensions count from 0.");
    if (panels.empty() && rest.empty()) continue;
    body += "<h3>" + run_name(runs, i) + "</h3>";
    if (!panels.empty())
      body += figure(
          "<div class=\"multiples\">" + panels + "</div>",
          "If a plot has several curves, each is one layer. Place n of a hidden state is before layer n, numbered "
          "from 0; the last two are after the last layer and after the last norm.",
          "splittable");
    body += rest;
  }
  return body;
}

}  // namespace lazy::report
