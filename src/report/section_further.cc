// What `lazy sinks --measures` found: Sink_k for every k, entropy, norms and variances by position, massive
// activations, collapse.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "core/text.h"
#include "report/format.h"
#include "report/heat_map.h"
#include "report/palette.h"
#include "report/plot.h"
#include "report/sections.h"

namespace lazy::report {
namespace {

constexpr double kPanelWidth = 296, kPanelHeight = 240;

std::string panel(const std::string& title, const std::string& picture) {
  return "<div class=\"panel\"><h4>" + html_escape(title) + "</h4>" + picture + "</div>";
}

// Rows of one colour each; on a logarithmic axis where values span more than a factor of 20.
std::string row_curves(const std::vector<std::vector<double>>& rows, const std::string& x_label,
                       const std::string& y_label) {
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
  plot.x_low = 1;
  plot.x_high = static_cast<double>(longest);
  plot.x_ticks = Plot::XTicks::integers;
  for (size_t r = 0; r < rows.size(); ++r) {
    Curve curve{{}, "curve thin " + series_class(rows.size() > 1 ? r : 0), true, -1};
    for (size_t n = 0; n < rows[r].size(); ++n) curve.points.emplace_back(static_cast<double>(n + 1), rows[r][n]);
    plot.curves.push_back(std::move(curve));
  }
  return draw(plot, kPanelWidth, kPanelHeight, "small");
}

std::string entropy_map(const FurtherReport& further) {
  // Nats over the layer x head table's highest, as a share, so that the ramp serves.
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
  std::string rows;
  for (size_t n = 0; n < places.size(); ++n) {
    const auto& m = places[n];
    rows += fmt::format(
        "<tr><th scope=\"row\">{}</th><td>{:.1f}</td><td>{:.4g}</td><td>{}</td><td>{}</td><td>{:.3g}</td></tr>",
        n + 1 < places.size() ? fmt::format("before layer {}", n + 1) : std::string("after the last"), m.per_sample,
        m.largest, m.position + 1, m.dimension, m.median);
  }
  return "<div class=\"scroll\"><table><thead><tr><th>hidden state</th><th>massive entries a sample</th><th>largest "
         "|a|</th><th>at position</th><th>dimension</th><th>median |a|</th></tr></thead><tbody>" +
         rows + "</tbody></table></div>";
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
      panels += panel("Pairwise cosine of hidden states", row_curves({further.cosine}, "place", "cosine")) +
                panel("Their effective rank", row_curves({further.effective_rank}, "place", "effective rank"));
    }
    if (!further.massive.empty())
      rest = figure(
          massive_table(further.massive),
          "Massive: |a| above 100 and above 1000 times the median |a| of that hidden state. Dimensions count from 0.");
    if (panels.empty() && rest.empty()) continue;
    body += "<h3>" + run_name(runs, i) + "</h3>";
    if (!panels.empty())
      body += figure("<div class=\"multiples\">" + panels + "</div>",
                     "A curve a layer where a picture has several. Places of hidden states: before each layer, after "
                     "the last, after the last norm.",
                     "splittable");
    body += rest;
  }
  return body;
}

}  // namespace lazy::report
