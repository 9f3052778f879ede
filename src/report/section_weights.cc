// Where attention's weight goes: the split of the whole, and every layer and head.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "core/text.h"
#include "report/format.h"
#include "report/palette.h"
#include "report/scale.h"
#include "report/sections.h"

namespace lazy::report {
namespace {

// One bar a run, cut into sink ratio, density and released mass. Only where all three are shares of one whole.
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
      "Of every 100\u2009% of weight that a query could give, how much goes where. Softmax must give all of it away; "
      "Elastic-Softmax may keep some back.");
}

std::string values_table(const std::string& name, const std::vector<std::vector<double>>& values) {
  std::string head = "<th scope=\"col\">layer</th>", rows;
  for (size_t h = 0; h < values.front().size(); ++h) head += fmt::format("<th scope=\"col\">head {}</th>", h + 1);
  head += "<th scope=\"col\">mean</th>";
  for (size_t l = 0; l < values.size(); ++l) {
    rows += fmt::format("<tr><th scope=\"row\">{}</th>", l + 1);
    double sum = 0;
    for (double v : values[l]) rows += fmt::format("<td>{}</td>", percent(v)), sum += v;
    rows += fmt::format("<td>{}</td></tr>", percent(sum / double(values[l].size())));
  }
  return fmt::format(
      "<h4>{}</h4><div class=\"scroll\"><table><thead><tr>{}</tr></thead><tbody>{}</tbody></table></div>",
      html_escape(name), head, rows);
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
    high = std::min(1.0, round_up(high));  // one scale a measure, shared by all runs
    std::string panels;
    for (size_t i = 0; i < runs.size(); ++i) {
      if (!runs[i].sinks) continue;
      const HeatMap map{fmt::format("{} of {} by layer and head", kind.title, runs[i].name),
                        runs[i].sinks.value().*kind.values, high};
      panels += fmt::format("<div class=\"panel\"><h4>{}</h4>{}</div>", run_name(runs, i), draw(map));
      tables += values_table(fmt::format("{} of {}, percent", kind.title, runs[i].name), map.values);
    }
    if (panels.empty()) return "";
    grid += fmt::format("<div class=\"measure\"><h3>{}</h3><p>{}</p>{}{}</div>", kind.title, kind.words, panels,
                        draw_color_bar(high));
  }
  std::string settings;
  for (const RunData& run : runs) {
    if (!run.sinks) continue;
    if (!run.sinks->command.empty()) commands += (commands.empty() ? "" : ", ") + code(run.sinks->command);
    const std::string text =
        fmt::format("{} sample{} of {} tokens{}; Sink<sub>1</sub><sup>0.3</sup> from {} samples of {}",
                    run.sinks->samples, run.sinks->samples == 1 ? "" : "s", run.sinks->length,
                    run.sinks->bos ? ", each after a BOS" : "", run.sinks->sink_samples, run.sinks->sink_length);
    if (settings.find(text) == std::string::npos) settings += (settings.empty() ? "" : "; ") + text;
  }
  return split_bars(runs) +
         figure("<div class=\"measures\">" + grid + "</div>",
                "Each cell is one head: layers from the top, heads from the left, numbers in percent. Runs side by "
                "side share a measure's "
                "colour bar. Means over " +
                    settings + "." + (commands.empty() ? "" : " Made by " + commands + ".")) +
         "<details><summary>All values as tables</summary>" + tables + "</details>";
}

}  // namespace lazy::report
