// Figures of the GPT-2 experiments: Delta_j, interventions, gamma and effective positional encodings (EPE).
#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "core/percent.h"
#include "core/statistics.h"
#include "core/text.h"
#include "report/heat_map.h"
#include "report/html.h"
#include "report/plot.h"
#include "report/sections.h"
#include "repro/pictures.h"
#include "repro/study_measures.h"
#include "sinks/positional_signal.h"

namespace lazy::repro {
namespace {

using Doubles = std::vector<double>;
using Texts = std::vector<std::vector<double>>;  // [text][layer]

std::string histogram(const Json& layer, size_t number) {
  const Json& h = layer.at("histogram");
  const double low = h.at("low"), high = h.at("high");
  report::Plot plot;
  plot.label =
      fmt::format("Layer {}: distribution of Delta_j at the first position and at all other positions", number);
  plot.x_label = "Delta";
  plot.y_label = "share";
  plot.x_low = low;
  plot.x_high = high > low ? high : low + 1;
  int color = 0;
  for (const char* which : {"others", "first"}) {
    const auto counts = h.at(which).get<Doubles>();
    double all = 0, most = 0;
    for (const double n : counts) all += n;
    report::Curve curve{{}, fmt::format("curve s{}", color), true, -1};
    const double width = (high - low) / static_cast<double>(counts.size());
    for (size_t i = 0; i < counts.size(); ++i) {
      const double share = all > 0 ? counts[i] / all : 0, x = low + width * static_cast<double>(i);
      curve.points.insert(curve.points.end(), {{x, share}, {x + width, share}});
      most = std::max(most, share);
    }
    plot.y_high = std::max(color == 0 ? 0.01 : plot.y_high, most * 1.05);
    plot.curves.push_back(std::move(curve));
    ++color;
  }
  return fmt::format("<div class=\"panel\"><h4>Layer {}</h4>{}</div>", number, report::draw(plot, 296, 200, "small"));
}

}  // namespace

std::string draw_delta(const Json& values, int) {
  std::string panels;
  for (size_t l = 0; l < values.at("by_layer").size(); ++l) panels += histogram(values.at("by_layer").at(l), l);
  return report::figure(
      "<p class=\"legend\">" + report::swatch("curve s1", -1) + "the first position &nbsp; " +
          report::swatch("curve s0", -1) + "all other positions</p><div class=\"multiples\">" + panels + "</div>",
      fmt::format("Distribution of Delta_j = gamma · x_j, the part of the score of key j that comes from the query "
                  "bias, over {} texts. It is summed over heads and not divided by the square root of the head size.",
                  values.at("texts").get<int64_t>()));
}

namespace {

const std::pair<const char*, const char*> kConditions[] = {{"none", "no intervention"},
                                                           {"1", "1: b_Q = 0"},
                                                           {"2", "2: EPE_1 replaced by EPE_2"},
                                                           {"3", "3: EPE_1 and EPE_2 swapped"},
                                                           {"4", "4: the first token's embedding = 0"},
                                                           {"5", "5: columns of W_k at the massive coordinates = 0"},
                                                           {"2'", "2': p_1 replaced by p_2 at the input"},
                                                           {"3'", "3': p_1 and p_2 swapped at the input"}};

std::vector<double> by_text(const Json& condition, const char* field) {
  std::vector<double> out;
  for (const auto& layers : condition.at(field).get<Texts>()) out.push_back(mean_of(layers));
  return out;
}

std::string shares_table(const Json& values) {
  report::Table table{
      .column_scope = false,
      .columns = {
          {""}, {"attention to position 1, %"}, {"attention to position 2, %"}, {"Sink<sub>1</sub><sup>0.3</sup>, %"}}};
  const auto percent = [](const std::vector<double>& shares) { return percent_number(mean_of(shares), 1); };
  for (const auto& [key, title] : kConditions) {
    const Json& condition = values.at("conditions").at(key);
    table.rows.push_back({html_escape(title),
                          {percent(by_text(condition, "first")), percent(by_text(condition, "second")),
                           percent(by_text(condition, "sink"))}});
  }
  table.rows.push_back(
      {"control of 5: random columns", {percent(control_by_text(values.at("control"))), std::string(), std::string()}});
  return report::to_html(table);
}

std::string by_layer_picture(const Json& values) {
  report::HeatMap map;
  map.label = "Attention to the first position by intervention and layer";
  map.row_name = "intervention";
  map.column_name = "layer";
  double high = 0;
  for (const auto& [key, title] : kConditions) {
    const auto texts = values.at("conditions").at(key).at("first").get<Texts>();
    std::vector<double> layers(texts.front().size());
    for (const auto& text : texts) {
      for (size_t l = 0; l < layers.size(); ++l) layers[l] += text[l] / static_cast<double>(texts.size());
    }
    high = std::max(high, *std::max_element(layers.begin(), layers.end()));
    map.row_labels.push_back(key);
    map.values.push_back(layers);
  }
  map.high = report::round_up(std::max(high, 1e-6));
  std::string single;
  if (values.contains("single")) {
    report::HeatMap one = map;
    one.label = "Attention to the first position in one layer when only this layer is changed";
    one.values.clear();
    one.row_labels.clear();
    for (const auto& [key, layers] : values.at("single").items()) {
      one.row_labels.push_back(key);
      one.values.emplace_back();
      // Interventions 2 and 3 start at the second layer.
      if (layers.size() < map.values.front().size()) one.values.back().push_back(std::nan(""));
      for (const Json& texts : layers) one.values.back().push_back(mean_of(texts.get<std::vector<double>>()));
    }
    single = "<div class=\"panel\"><h4>Intervention in one layer</h4>" + report::draw(one) + "</div>";
  }
  return "<div class=\"multiples\"><div class=\"panel\"><h4>Intervention in all layers</h4>" + report::draw(map) +
         "</div>" + single + "</div>" + report::draw_color_bar(map.high);
}

}  // namespace

std::string draw_interventions(const Json& values, int number) {
  const auto panels = [&](size_t layer, size_t) {
    std::string out = "<div class=\"multiples\">";
    const auto panel = [&](const std::string& title, const Json& maps) {
      const report::AttentionMap map{
          static_cast<int>(layer), 0, {}, maps.at(layer).get<std::vector<std::vector<double>>>()};
      out += "<div class=\"panel\"><h4>" + html_escape(title) + "</h4>" + report::draw_compact(map) + "</div>";
    };
    for (const auto& [key, title] : kConditions) panel(title, values.at("conditions").at(key).at("map"));
    panel("control of 5: one random pair", values.at("control").at(0).at("map"));
    return out + "</div>";
  };
  return report::figure(shares_table(values), "Each value is the mean over heads, layers, later queries and texts.") +
         report::figure(by_layer_picture(values),
                        "Attention to the first position in percent, by intervention (row) and layer (column).") +
         report::figure(report::map_browser(fmt::format("maps{}", number),
                                            {report::numbered("layer", values.at("layers").get<size_t>(), 0)}, panels) +
                            report::draw_weight_bar(),
                        "Attention weights averaged over heads and all texts, first 32 positions. Row: query. Column: "
                        "key. Darker colors are larger weights, on a square-root scale.",
                        "splittable");
}

// Draws |gamma| at the ten coordinates at which |EPE_1| is largest, divided by the maximum of the layer. EPE_1 is the
// effective positional encoding of the first position.
std::string draw_gamma(const Json& values, int) {
  report::HeatMap map;
  map.label =
      "|gamma| at the ten coordinates at which the effective positional embedding EPE_1 is largest, as a share of the "
      "layer's maximum";
  map.column_name = "coordinate";
  const Json& largest = values.at("top").at(sinks::name(sinks::EffectivePositions::literal));
  for (const Json& top : largest) map.column_labels.push_back(std::to_string(top.at("coordinate").get<int64_t>()));
  for (const Json& layer : values.at("gamma")) {
    const auto all = layer.at("all").get<std::vector<double>>();
    const double most = *std::max_element(all.begin(), all.end());
    map.values.emplace_back();
    for (const Json& top : largest) map.values.back().push_back(all.at(top.at("coordinate").get<size_t>()) / most);
  }
  return report::figure(report::draw(map) + report::draw_color_bar(1),
                        "Row: layer. Column: one of the ten coordinates at which the effective positional embedding "
                        "EPE_1 is largest in absolute value, the largest first. Color: |gamma| at this coordinate "
                        "divided by the largest |gamma| of the layer, in percent.");
}

namespace {

// Describes a definition of the effective positional encoding (EPE) in words.
const char* words(sinks::EffectivePositions reading) {
  constexpr const char* all[] = {"the MLP applied to p", "the MLP applied to the norm of p",
                                 "the whole first layer applied to p"};
  return all[static_cast<size_t>(reading)];
}

std::string vector_plot(const Json& first) {
  report::Plot plot;
  plot.label = "Values of the effective positional embedding EPE_1 by coordinate";
  plot.x_label = "coordinate";
  plot.y_label = "EPE_1";
  plot.x_high = static_cast<double>(first.size() - 1);
  plot.y_low = plot.y_high = 0;
  report::Curve curve{{}, "curve thin s0", true, -1};
  for (size_t i = 0; i < first.size(); ++i) {
    const double v = first.at(i);
    curve.points.emplace_back(static_cast<double>(i), v);
    plot.y_low = std::min(plot.y_low, 1.05 * v);
    plot.y_high = std::max(plot.y_high, 1.05 * v);
  }
  plot.curves.push_back(std::move(curve));
  return report::draw_responsive(plot);
}

std::string cosine_plot(const Json& layers) {
  report::Plot plot;
  plot.label =
      "Cosine of the query bias b_Q and W_k EPE_j by layer: value of the first position, and mean and standard "
      "deviation of the other positions";
  plot.x_label = "layer";
  plot.y_label = "cosine";
  plot.x_ticks = report::Plot::XTicks::integers;
  plot.x_low = 0;
  plot.x_high = std::max(1.0, static_cast<double>(layers.size()) - 1);
  plot.y_low = -1;
  std::vector<report::Curve> curves{{{}, "curve s1", true, 0},
                                    {{}, "curve s0", true, 1},
                                    {{}, "curve faint s0", true, -1},
                                    {{}, "curve faint s0", true, -1}};
  for (size_t l = 0; l < layers.size(); ++l) {
    const double x = static_cast<double>(l), mean = layers.at(l).at("others_mean"),
                 spread = layers.at(l).at("others_std");
    curves[0].points.emplace_back(x, layers.at(l).at("first").get<double>());
    curves[1].points.emplace_back(x, mean);
    curves[2].points.emplace_back(x, std::max(-1.0, mean - spread));
    curves[3].points.emplace_back(x, std::min(1.0, mean + spread));
  }
  plot.curves = std::move(curves);
  return "<p class=\"legend\">" + report::swatch("curve s1", 0) + "EPE_1 &nbsp; " + report::swatch("curve s0", 1) +
         "the other positions, with their standard deviation</p>" + report::draw_responsive(plot);
}

}  // namespace

std::string draw_positions(const Json& values, int) {
  std::string body;
  for (const auto reading : sinks::kEffectivePositionVariants) {
    const Json& v = values.at(sinks::name(reading));
    body += report::figure(
        vector_plot(v.at("first")),
        fmt::format("Effective positional embedding EPE_1, read as {}. Its norm is {:.3g}; the median norm of the "
                    "other positions is {:.3g}.",
                    words(reading), v.at("norm_first").get<double>(), v.at("norm_others").get<double>()));
    body += report::figure(cosine_plot(v.at("cosines")),
                           fmt::format("Cosine of W_k EPE_j and the query bias b_Q in each layer; EPE_j is the "
                                       "effective positional embedding of position j, read as {}.",
                                       words(reading)));
  }
  return body;
}

}  // namespace lazy::repro
