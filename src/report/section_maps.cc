// Attention maps over real words.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <set>

#include "core/text.h"
#include "report/format.h"
#include "report/map_browser.h"
#include "report/palette.h"
#include "report/sections.h"

namespace lazy::report {
namespace {

// The text itself, each token shaded by the mean weight it receives.
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

// More maps than these are chosen from, one at a time.
constexpr size_t kMostPanels = 8;

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
    if (runs[i].sinks->maps.size() > kMostPanels) {
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
    // Long texts need the page's whole width.
    const bool long_text = runs[i].sinks->maps.front().tokens.size() > 26;
    body +=
        fmt::format("<h3>{}</h3><div class=\"maps{}\">{}</div>", run_name(runs, i), long_text ? " single" : "", panels);
    if (!runs[i].sinks->command.empty()) commands += (commands.empty() ? "" : ", ") + code(runs[i].sinks->command);
  }
  if (body.empty()) return "";
  return figure(body + "<div class=\"bar-line\">" + draw_weight_bar() + "</div>",
                "Row: the word that looks (query). Column: the words it may look at (keys), in the same order. Darker "
                "is more weight, by the "
                "square root; a blank cell inside the triangle is a weight of exactly zero. A dark first column is an "
                "attention sink. Below "
                "each map, the text shaded by the mean weight that each word receives." +
                    (commands.empty() ? "" : " Made by " + commands + "."),
                "splittable");
}

}  // namespace lazy::report
