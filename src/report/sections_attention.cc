// Sections about attention weights: their distribution, by layer and head, and attention maps on real text.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <set>

#include "core/text.h"
#include "report/heat_map.h"
#include "report/html.h"
#include "report/plot.h"
#include "report/sections.h"
#include "report/style.h"

namespace lazy::report {

// Distribution of attention weight: overall shares, and values for every layer and head.

namespace {

// One bar per run, divided into sink ratio, density and released mass. Runs with negative released mass are omitted,
// because the three are then not parts of one whole.
std::string split_bars(const std::vector<RunData>& runs) {
  std::string rows;
  for (size_t i = 0; i < runs.size(); ++i) {
    if (!runs[i].sinks) continue;
    const SinkMeasures& m = runs[i].sinks->overall;
    if (m.released_mass < -1e-4) continue;
    std::string parts;
    const auto part = [&](const char* css_class, const char* name, double share) {
      if (share < 5e-5) return;
      const std::string text = share > 0.16 ? fmt::format("{}\u2009%", percent(share)) : "";
      parts += fmt::format("<span class=\"{}\" style=\"width:{}%\" title=\"{}: {} %\">{}</span>", css_class,
                           coordinate(100 * share), name, percent(share), text);
    };
    part("part-sink", "sink ratio", m.sink_ratio);
    part("part-density", "density", m.density);
    part("part-released", "released mass", m.released_mass);
    rows += fmt::format("<div class=\"split-name\">{}</div><div class=\"split\">{}</div>", run_name(runs, i), parts);
  }
  if (rows.empty()) return "";
  return figure(
      "<p class=\"legend\"><span><i class=\"key part-sink\"></i>first key (sink ratio)</span> <span><i class=\"key "
      "part-density\"></i>"
      "other keys (density)</span> <span><i class=\"key part-released\"></i>no key (released mass)</span></p><div "
      "class=\"splits\">" +
          rows + "</div>",
      "Shares of the total attention weight of a query.");
}

std::string values_table(const std::string& name, const std::vector<std::vector<double>>& values) {
  Table table{.columns = {{"layer"}}};
  for (size_t h = 0; h < values.front().size(); ++h) table.columns.push_back(fmt::format("head {}", h));
  table.columns.push_back({"mean"});
  for (size_t l = 0; l < values.size(); ++l) {
    Table::Row& row = table.rows.emplace_back();
    row.title = std::to_string(l);
    double sum = 0;
    for (double v : values[l]) row.cells.push_back(percent(v)), sum += v;
    row.cells.push_back(percent(sum / double(values[l].size())));
  }
  return "<h4>" + html_escape(name) + "</h4>" + to_html(table);
}

}  // namespace

std::string weight_pictures(const std::vector<RunData>& runs) {
  struct Kind {
    const char *title, *words;
    std::vector<std::vector<double>> SinkReport::*values;
  };
  const Kind kinds[] = {{"Sink ratio", "weight on the first key", &SinkReport::sink_ratio},
                        {"Density", "weight on the other keys", &SinkReport::density},
                        {"Alive fraction", "visible pairs with weight above zero", &SinkReport::alive_fraction}};
  std::string grid, tables, commands;
  for (const Kind& kind : kinds) {
    double high = 0;
    for (const RunData& run : runs) {
      if (!run.sinks) continue;
      for (const auto& row : run.sinks.value().*kind.values)
        high = std::max(high, *std::max_element(row.begin(), row.end()));
    }
    high = std::min(1.0, round_up(high));  // one scale per measure, shared by all runs
    std::string panels;
    bool drawn = false;
    for (size_t i = 0; i < runs.size(); ++i) {
      if (!runs[i].sinks) continue;
      const HeatMap map{fmt::format("{} of {} by layer and head", kind.title, runs[i].name),
                        runs[i].sinks.value().*kind.values, high};
      double lowest = 1e300, highest = -1e300;
      for (const auto& row : map.values) {
        const auto [least, most] = std::minmax_element(row.begin(), row.end());
        lowest = std::min(lowest, *least);
        highest = std::max(highest, *most);
      }
      const bool flat = highest - lowest < kFlat;
      panels += fmt::format("<div class=\"panel\"><h4>{}</h4>{}</div>", run_name(runs, i),
                            flat ? fmt::format("<p>{}\u2009% in every head</p>", percent(highest)) : draw(map));
      drawn |= !flat;
      tables += values_table(fmt::format("{} of {}, percent", kind.title, runs[i].name), map.values);
    }
    if (panels.empty()) return "";
    grid += fmt::format("<div class=\"measure\"><h3>{}</h3><p>{}</p>{}{}</div>", kind.title, kind.words, panels,
                        drawn ? draw_color_bar(high) : "");
  }
  std::string settings;
  for (const RunData& run : runs) {
    if (!run.sinks) continue;
    if (!run.sinks->command.empty()) commands += (commands.empty() ? "" : ", ") + code(run.sinks->command);
    std::string text = fmt::format("{} sample{} of {} tokens{}", run.sinks->samples, run.sinks->samples == 1 ? "" : "s",
                                   run.sinks->length, run.sinks->bos ? ", each after a BOS" : "");
    if (run.sinks->sink_samples > 0) {
      text += fmt::format("; Sink<sub>1</sub><sup>0.3</sup> from {} samples of {}", run.sinks->sink_samples,
                          run.sinks->sink_length);
    }
    if (settings.find(text) == std::string::npos) settings += (settings.empty() ? "" : "; ") + text;
  }
  return split_bars(runs) +
         figure("<div class=\"measures\">" + grid + "</div>",
                "Each cell is one head. Rows are layers and columns are heads, both numbered from 0; values are in "
                "percent. All runs use the same color scale for a measure. Means over " +
                    settings + "." + (commands.empty() ? "" : " Created by " + commands + ".")) +
         "<details><summary>All values as tables</summary>" + tables + "</details>";
}

// Attention maps on real text.

namespace {

// The text with each token shaded by the mean weight that it receives.
std::string shaded_text(const AttentionMap& map) {
  std::string html;
  const auto weights = received(map);
  for (size_t i = 0; i < map.tokens.size(); ++i) {
    const int level = ramp_level(std::sqrt(std::clamp(weights[i], 0.0, 1.0)));
    std::string token = map.tokens[i];
    std::replace(token.begin(), token.end(), '\n', ' ');
    html += fmt::format("<span class=\"q{} {}\" title=\"{} %\">{}</span>", level,
                        plain_text_on(level) ? "on-low" : "on-high", percent(weights[i]), html_escape(token));
  }
  return "<p class=\"shaded\">" + html + "</p>";
}

// If a run has more maps than this, the page shows one map at a time with a selector.
constexpr size_t kMaxPanels = 8;

std::string browser(const std::vector<AttentionMap>& maps, const std::string& id) {
  MapAxis layers{"layer", {}}, heads{"head", {}};
  std::map<std::pair<int, int>, const AttentionMap*> found;
  std::set<int> layer_numbers, head_numbers;
  for (const AttentionMap& map : maps) {
    found[{map.layer, map.head}] = &map;
    layer_numbers.insert(map.layer);
    head_numbers.insert(map.head);
  }
  for (const int n : layer_numbers) layers.labels.push_back(std::to_string(n));
  for (const int n : head_numbers) heads.labels.push_back(std::to_string(n));
  return map_browser(id, {layers, heads}, [&](size_t layer, size_t head) {
    const auto map = found.find({std::stoi(layers.labels[layer]), std::stoi(heads.labels[head])});
    return map == found.end() ? std::string("<p>not drawn</p>") : draw_compact(*map->second);
  });
}

}  // namespace

std::string attention_maps(const std::vector<RunData>& runs) {
  std::string body, commands;
  for (size_t i = 0; i < runs.size(); ++i) {
    if (!runs[i].sinks || runs[i].sinks->maps.empty()) continue;
    std::string panels;
    if (runs[i].sinks->maps.size() > kMaxPanels) {
      body += fmt::format("<h3>{}</h3>{}", run_name(runs, i), browser(runs[i].sinks->maps, fmt::format("maps{}", i)));
      if (!runs[i].sinks->command.empty()) commands += (commands.empty() ? "" : ", ") + code(runs[i].sinks->command);
      continue;
    }
    for (const AttentionMap& map : runs[i].sinks->maps) {
      double first = 0, released = 0;
      for (const auto& row : map.weights) {
        double sum = 0;
        for (double w : row) sum += w;
        first += row.front() / double(map.weights.size());
        released += (1 - sum) / double(map.weights.size());
      }
      std::string words = fmt::format("sink {}\u2009%", percent(first));
      if (std::fabs(released) > 5e-4) words += fmt::format(", released {}\u2009%", percent(released));
      panels += fmt::format(
          "<div class=\"panel\"><h4>Layer {}, head {} <small>{}</small></h4><div class=\"scroll\">{}{}</div>{}</div>",
          map.layer, map.head, words, draw_square(map), draw_narrow(map), shaded_text(map));
    }
    // Long texts need the full width of the page.
    const bool long_text = runs[i].sinks->maps.front().tokens.size() > 26;
    body +=
        fmt::format("<h3>{}</h3><div class=\"maps{}\">{}</div>", run_name(runs, i), long_text ? " single" : "", panels);
    if (!runs[i].sinks->command.empty()) commands += (commands.empty() ? "" : ", ") + code(runs[i].sinks->command);
  }
  if (body.empty()) return "";
  return figure(
      body + "<div class=\"bar-line\">" + draw_weight_bar() + "</div>",
      "Rows are queries and columns are keys, in the order of the text. Darker colors are larger weights, on a "
      "square-root scale; a blank cell inside the triangle is a weight of exactly zero. A dark first column is an "
      "attention sink. The text below each map is shaded by the mean weight that each token receives." +
          (commands.empty() ? "" : " Created by " + commands + "."),
      "splittable");
}

}  // namespace lazy::report
