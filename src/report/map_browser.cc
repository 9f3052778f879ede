#include "report/map_browser.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <map>

#include "core/text.h"
#include "report/format.h"
#include "report/palette.h"
#include "report/svg.h"

namespace lazy::report {
namespace {

constexpr double kMapWidth = 296;

}  // namespace

MapAxis numbered(const std::string& name, size_t places) {
  MapAxis axis{name, {}};
  for (size_t n = 1; n <= places; ++n) axis.labels.push_back(std::to_string(n));
  return axis;
}

std::string map_browser(const std::string& id, const std::vector<MapAxis>& axes,
                        const std::function<std::string(size_t, size_t)>& picture) {
  // An input's :checked shows its own part of the stage; the inputs come before the stage, so that `~` reaches it.
  std::string css = fmt::format(
      ".{0} .part{{display:none}}.{0} input{{position:absolute;opacity:0}}.{0} "
      "label{{display:inline-block;min-width:30px;padding:5px 7px;"
      "text-align:center;border-radius:5px;cursor:pointer;font-size:15px}}.{0} .choices{{margin:4px "
      "0;display:flex;flex-wrap:wrap;align-items:baseline}}"
      ".{0} .choices b{{min-width:4.5em;font-weight:400;color:var(--soft)}}",
      id);
  std::string inputs, choices;
  for (size_t a = 0; a < axes.size(); ++a) {
    choices += fmt::format("<div class=\"choices\"><b>{}</b>", html_escape(axes[a].name));
    for (size_t n = 0; n < axes[a].labels.size(); ++n) {
      const std::string input = fmt::format("{}-{}-{}", id, a, n);
      inputs += fmt::format("<input type=\"radio\" name=\"{}-{}\" id=\"{}\"{} aria-label=\"{} {}\">", id, a, input,
                            n == 0 ? " checked" : "", html_escape(axes[a].name), html_escape(axes[a].labels[n]));
      choices += fmt::format("<label for=\"{}\">{}</label>", input, html_escape(axes[a].labels[n]));
      css += fmt::format(
          "#{0}:checked~.stage .part{1}-{2}{{display:block}}#{0}:checked~.choices "
          "label[for={0}]{{background:var(--ink);color:var(--page)}}"
          "#{0}:focus-visible~.choices label[for={0}]{{outline:2px solid var(--ink)}}",
          input, a, n);
    }
    choices += "</div>";
  }
  std::string stage;
  for (size_t n = 0; n < axes[0].labels.size(); ++n) {
    stage += fmt::format("<div class=\"part part0-{}\">", n);
    if (axes.size() == 1) stage += picture(n, 0);
    for (size_t m = 0; axes.size() > 1 && m < axes[1].labels.size(); ++m)
      stage += fmt::format("<div class=\"part part1-{}\">{}</div>", m, picture(n, m));
    stage += "</div>";
  }
  return fmt::format("<style>{}</style><div class=\"browser {}\">{}{}<div class=\"stage\">{}</div></div>", css, id,
                     inputs, choices, stage);
}

std::string draw_compact(const AttentionMap& map) {
  const size_t count = map.weights.size();
  if (count == 0) return "";
  const double left = map.tokens.empty() ? 0 : 80, cell_width = (kMapWidth - left) / double(count),
               cell_height = map.tokens.empty() ? cell_width : 16;
  Svg svg(kMapWidth, cell_height * double(count),
          fmt::format("Attention map of layer {}, head {}", map.layer, map.head), "heat");
  for (size_t i = 0; i < map.tokens.size(); ++i)
    svg.text(left - 6, cell_height * (double(i) + 0.5) + 4.5, token_label(map.tokens[i], 7), "end", "token");
  svg.rect(left, 0, kMapWidth - left, cell_height * double(count), "q0");
  std::map<int, std::string> by_level;
  for (size_t i = 0; i < count; ++i) {
    const auto& row = map.weights[i];
    for (size_t j = 0; j < row.size() && j <= i;) {
      // Neighbours of one colour are one piece.
      const int level = ramp_level(std::sqrt(std::clamp(row[j], 0.0, 1.0)));
      size_t end = j + 1;
      while (end < row.size() && end <= i && ramp_level(std::sqrt(std::clamp(row[end], 0.0, 1.0))) == level) ++end;
      if (level > 0) {
        by_level[level] += fmt::format("M{} {}h{}v{}h-{}z", coordinate(left + cell_width * double(j)),
                                       coordinate(cell_height * double(i)), coordinate(cell_width * double(end - j)),
                                       coordinate(cell_height), coordinate(cell_width * double(end - j)));
      }
      j = end;
    }
  }
  std::string paths;
  for (const auto& [level, d] : by_level) paths += fmt::format("<path class=\"q{}\" d=\"{}\"/>", level, d);
  std::string text = svg.str();
  return text.insert(text.rfind("</svg>"), paths);
}

}  // namespace lazy::report
