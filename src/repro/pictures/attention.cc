// Figures of attention to the first tokens: natural text compared with repetition, a fixed token at position k
// (Mask@k), and variances by position.
#include <fmt/format.h>

#include <algorithm>

#include "core/percent.h"
#include "core/statistics.h"
#include "core/text.h"
#include "report/heat_map.h"
#include "report/html.h"
#include "report/plot.h"
#include "report/sections.h"
#include "repro/pictures.h"

namespace lazy::repro {

std::string draw_repetition(const Json& values, int number) {
  report::MapAxis layers{"layer", {}};
  // Older results number layers from 1. The first map always shows the first layer, so layer numbers are computed
  // relative to it.
  const Json& maps = values.at("natural").at("map");
  for (const Json& map : maps) {
    layers.labels.push_back(std::to_string(map.at("layer").get<int64_t>() - maps.at(0).at("layer").get<int64_t>()));
  }
  const auto panels = [&](size_t place, size_t) {
    std::string out = "<div class=\"multiples\">";
    for (const auto& [input, title] : {std::pair{"natural_bos", "Natural text after BOS"},
                                       {"natural", "Natural text"},
                                       {"repeated", "One token repeated"}}) {
      if (input == std::string("natural_bos") && !values.at("bos").get<bool>()) continue;
      out += fmt::format(
          "<div class=\"panel\"><h4>{}</h4>{}</div>", title,
          report::draw_compact(
              {0, 0, {}, values.at(input).at("map").at(place).at("weights").get<std::vector<std::vector<double>>>()}));
    }
    return out + "</div>";
  };
  return report::figure(
      report::map_browser(fmt::format("repetition{}", number), {layers}, panels) + report::draw_weight_bar(),
      "Attention weights averaged over heads and 32 texts, first 24 positions. Row: query. Column: key. Darker colors "
      "are larger weights, on a square-root scale.",
      "splittable");
}

std::string draw_masks(const Results& results) {
  report::Plot plot;
  plot.label = "Mean weight that each position receives, one curve per position of the fixed token";
  plot.x_label = "position";
  plot.y_label = "mean weight received";
  plot.x_kind = report::Scale::Kind::log;
  plot.x_ticks = report::Plot::XTicks::powers;
  plot.x_low = 1, plot.x_high = 2;
  plot.y_high = 1e-9;
  std::string legend;
  report::Table table{.column_scope = false,
                      .columns = {{"k"},
                                  {"weight on position k, %"},
                                  {"on position 1, %"},
                                  {"uniform weight, %"},
                                  {"Sink<sub>k</sub><sup>0.3</sup>, %"},
                                  {"Sink<sub>1</sub><sup>0.3</sup>, %"}}};
  for (const auto& [model, values] : results.of_kind(".mask")) {
    if (model.find(".seed") != std::string::npos) continue;  // only the first seed is drawn
    const auto alpha = values->at("alpha").get<std::vector<double>>();
    const int color = static_cast<int>(plot.curves.size());
    report::Curve curve{{}, fmt::format("curve s{}", color % 8), true, color % 4};
    for (size_t n = 0; n < alpha.size(); ++n) {
      curve.points.emplace_back(static_cast<double>(n + 1), alpha[n]);
      plot.y_high = std::max(plot.y_high, 1.05 * alpha[n]);
    }
    plot.x_high = std::max(plot.x_high, static_cast<double>(alpha.size()));
    legend += report::swatch(curve.css_class, curve.marker) +
              fmt::format("k = {} &nbsp; ", values->at("position").get<int64_t>());
    const auto percent = [&values = *values](const char* field) {
      return percent_number(mean_of(values.at(field).get<std::vector<double>>()), 1);
    };
    table.rows.push_back(
        {std::to_string(values->at("position").get<int64_t>()),
         {percent("masked"), percent("first"), fmt::format("{:.1f}", 100 * values->at("even").get<double>()),
          percent("sink_masked"), percent("sink_first")}});
    plot.curves.push_back(std::move(curve));
  }
  if (plot.curves.empty()) return "";
  return report::section("mask", "Mask@k", "",
                         report::figure(report::to_html(table),
                                        "Weight from the queries after position k, mean over layers, heads and texts; "
                                        "fraction of heads whose mean weight on that "
                                        "position exceeds 0.3. Every row is a separate model.") +
                             report::figure("<p class=\"legend\">" + legend + "</p>" + report::draw_responsive(plot),
                                            "Mean weight alpha that a position receives from the queries that see it, "
                                            "over layers, heads and texts. Few queries see the last positions."));
}

namespace {

std::string variance_plot(const Json& by_layer, const char* what) {
  report::Plot plot;
  plot.label = fmt::format("Variance of {} by position, one curve per layer", what);
  plot.x_label = "position";
  plot.y_label = "variance";
  plot.y_kind = report::Scale::Kind::log;
  plot.x_low = 1;
  plot.y_low = 1e300, plot.y_high = 1e-300;
  for (size_t layer = 0; layer < by_layer.size(); ++layer) {
    report::Curve curve{{}, fmt::format("curve thin s{}", layer % 8), true, -1};
    const auto values = by_layer.at(layer).get<std::vector<double>>();
    for (size_t n = 0; n < values.size(); ++n) {
      if (values[n] <= 0) continue;
      curve.points.emplace_back(static_cast<double>(n + 1), values[n]);
      plot.y_low = std::min(plot.y_low, values[n]), plot.y_high = std::max(plot.y_high, values[n]);
    }
    plot.x_high = std::max(2.0, static_cast<double>(values.size()));
    plot.curves.push_back(std::move(curve));
  }
  plot.y_low /= 1.2, plot.y_high *= 1.2;
  return report::draw(plot, 296, 260, "small");
}

}  // namespace

std::string draw_variances(const Results& results) {
  std::string body;
  for (const auto& [model, values] : results.of_kind(".spread")) {
    std::string panels;
    for (const auto& [field, title] : {std::pair{"residual", "hidden states"}, {"values", "values"}}) {
      panels += fmt::format("<div class=\"panel\"><h4>{}: {}</h4>{}</div>", model, title,
                            variance_plot(values->at("by_position").at(field), title));
    }
    body += report::figure(
        "<div class=\"multiples\">" + panels + "</div>",
        "Variance over a vector's entries, mean over texts (and heads), one curve per layer; logarithmic axis.");
  }
  return body.empty() ? "" : report::section("variance", "Variance by position", "", body);
}

}  // namespace lazy::repro
