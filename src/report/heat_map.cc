#include "report/heat_map.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <map>

#include "core/text.h"
#include "report/html.h"
#include "report/plot.h"
#include "report/style.h"
#include "report/svg.h"

namespace lazy::report {

namespace {

constexpr double kWidth = 296, kMapFont = 14;

std::string level_class(double t) { return fmt::format("q{}", ramp_level(t)); }

// A strip of the color ramp with tick labels; `marks` are pairs of a position in [0, 1] and its label.
std::string bar(double width, const std::vector<std::pair<double, std::string>>& marks, const std::string& label) {
  Svg svg(width, 36, label, "bar");
  const double step = width / kRampLevels;
  for (int i = 0; i < kRampLevels; ++i)
    svg.rect(i * step, 0, step + (i + 1 < kRampLevels ? 0.5 : 0), 12, fmt::format("q{}", i));
  double last_end = -1e9;
  for (const auto& [at, text] : marks) {
    const double half = text_width(text, kMapFont) / 2;
    const double middle = std::clamp(at * width, half, width - half);
    if (middle - half < last_end + 6) continue;
    svg.text(middle, 30, text, "middle", "tick");
    last_end = middle + half;
  }
  return svg.str();
}

}  // namespace

std::string draw(const HeatMap& map) {
  const size_t rows = map.values.size(), columns = rows ? map.values.front().size() : 0;
  if (columns == 0) return "";
  const auto row_label = [&](size_t r) { return r < map.row_labels.size() ? map.row_labels[r] : std::to_string(r); };
  const auto column_label = [&](size_t c) {
    return c < map.column_labels.size() ? map.column_labels[c] : std::to_string(c);
  };
  double left = 26, widest = 16;
  for (const std::string& label : map.row_labels) left = std::max(left, text_width(label, kMapFont) + 10);
  for (const std::string& label : map.column_labels) widest = std::max(widest, text_width(label, kMapFont));
  const double top = 2, cell_width = (kWidth - left) / double(columns);
  const double cell_height = std::clamp(220.0 / double(rows), 9.0, 30.0),
               height = top + cell_height * double(rows) + 40;
  const bool with_values = cell_width >= 32 && cell_height >= 18;
  const double gap = cell_width > 10 && cell_height > 10 ? 1 : 0.4;
  Svg svg(kWidth, height, map.label, "heat");
  const size_t row_step = static_cast<size_t>(std::ceil(16 / cell_height)),
               column_step = static_cast<size_t>(std::ceil((widest + 8) / cell_width));
  for (size_t r = 0; r < rows; ++r) {
    const double y = top + cell_height * double(r);
    if (r % row_step == 0) svg.text(left - 8, y + cell_height / 2 + 5, row_label(r), "end", "tick");
    for (size_t c = 0; c < map.values[r].size(); ++c) {
      const double value = map.values[r][c], x = left + cell_width * double(c);
      const std::string text = std::isfinite(value) ? percent(value) : "–";
      const int level = std::isfinite(value) ? ramp_level(value / map.high) : 0;
      svg.rect(x, y, cell_width - gap, cell_height - gap, fmt::format("q{}", level),
               fmt::format("{} {}, {} {}: {} %", map.row_name, row_label(r), map.column_name, column_label(c), text));
      if (with_values) {
        svg.text(x + (cell_width - gap) / 2, y + cell_height / 2 + 4.5, text, "middle",
                 plain_text_on(level) ? "on-low" : "on-high");
      }
    }
  }
  const double foot = top + cell_height * double(rows) + 16;
  for (size_t c = 0; c < columns; c += column_step) {
    svg.text(left + cell_width * (double(c) + 0.5) - gap / 2, foot, column_label(c), "middle", "tick");
  }
  svg.text(0, foot + 18, map.row_name, "start", "axis-name");
  svg.text(kWidth, foot + 18, map.column_name, "end", "axis-name");
  return svg.str();
}

std::string draw_color_bar(double high, double width) {
  std::vector<std::pair<double, std::string>> marks;
  for (double at : {0.0, 0.5, 1.0}) marks.emplace_back(at, percent(at * high) + " %");
  return bar(width, marks, fmt::format("Color bar: 0 to {} percent", percent(high)));
}

std::string draw_weight_bar(double width) {
  std::vector<std::pair<double, std::string>> marks;
  for (double value : {0.0, 0.05, 0.2, 0.5, 1.0}) marks.emplace_back(std::sqrt(value), percent(value) + " %");
  return bar(width, marks, "Color bar of attention weights: 0 to 100 percent, square-root scale");
}

std::vector<double> received(const AttentionMap& map) {
  std::vector<double> mean(map.weights.size(), 0.0);
  for (size_t i = 0; i < map.weights.size(); ++i) {
    for (size_t j = 0; j < map.weights[i].size() && j <= i; ++j)
      mean[j] += map.weights[i][j] / double(map.weights.size() - j);
  }
  return mean;
}

std::string token_label(const std::string& token, size_t most) {
  std::string visible;
  for (char byte : std::string(strip(token))) visible += static_cast<unsigned char>(byte) < 0x20 ? '?' : byte;
  if (visible.empty()) visible = token.find('\n') != std::string::npos ? "⏎" : token.empty() ? "∅" : "␣";
  size_t characters = 0, at = 0;
  for (; at < visible.size(); ++at) {
    if ((static_cast<unsigned char>(visible[at]) & 0xC0) != 0x80 && ++characters > most) break;
  }
  return at < visible.size() ? visible.substr(0, at) + "…" : visible;
}

namespace {

void cells(Svg& svg, const AttentionMap& map, double left, double top, double cell_width, double cell_height,
           bool titles) {
  for (size_t i = 0; i < map.weights.size(); ++i) {
    // The keys that a query may see have a tinted background; a blank cell on this background is a weight of exactly
    // zero.
    svg.rect(left, top + cell_height * double(i), cell_width * double(i + 1), cell_height - 0.6, "visible");
    for (size_t j = 0; j <= i && j < map.weights[i].size(); ++j) {
      const double weight = map.weights[i][j];
      if (!(weight > 0)) continue;
      svg.rect(left + cell_width * double(j), top + cell_height * double(i), cell_width - 0.6, cell_height - 0.6,
               level_class(std::sqrt(weight)),
               titles ? fmt::format("{} → {}: {} %", token_label(map.tokens[i], 24), token_label(map.tokens[j], 24),
                                    percent(weight))
                      : "");
    }
  }
}

}  // namespace

std::string draw_square(const AttentionMap& map) {
  // Up to 64 tokens fit into the column of the page, and a row is at least as high as its label.
  const double margin = 88, cell = std::clamp(948 / double(std::max<size_t>(1, map.weights.size())), 14.8, 17.0),
               side = cell * double(map.weights.size());
  Svg svg(margin + side, margin + side, fmt::format("Attention map of layer {}, head {}", map.layer, map.head),
          "map at-square");
  for (size_t i = 0; i < map.weights.size(); ++i) {
    const double middle = margin + cell * (double(i) + 0.5);
    const std::string label = token_label(map.tokens[i], 8);
    svg.text(margin - 6, middle + 4.5, label, "end", "token");
    svg.text(middle + 4.5, margin - 6, label, "start", "token", -90);
  }
  cells(svg, map, margin, margin, cell, cell, true);
  return svg.str();
}

std::string draw_narrow(const AttentionMap& map) {
  const double left = 80, cell_height = 16,
               cell_width = (kWidth - left) / double(std::max<size_t>(1, map.weights.size()));
  Svg svg(kWidth, cell_height * double(map.weights.size()),
          fmt::format("Attention map of layer {}, head {}", map.layer, map.head), "map at-column");
  for (size_t i = 0; i < map.weights.size(); ++i) {
    svg.text(left - 6, cell_height * (double(i) + 0.5) + 4.5, token_label(map.tokens[i], 7), "end", "token");
  }
  cells(svg, map, left, 0, cell_width, cell_height, false);
  return svg.str();
}

MapAxis numbered(const std::string& name, size_t count, size_t first) {
  MapAxis axis{name, {}};
  for (size_t n = 0; n < count; ++n) axis.labels.push_back(std::to_string(first + n));
  return axis;
}

std::string map_browser(const std::string& id, const std::vector<MapAxis>& axes,
                        const std::function<std::string(size_t, size_t)>& picture) {
  // The :checked state of an input shows its part of the stage. The inputs precede the stage so that the CSS selector
  // `~` matches it.
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
  const double left = map.tokens.empty() ? 0 : 80, cell_width = (kWidth - left) / double(count),
               cell_height = map.tokens.empty() ? cell_width : 16;
  Svg svg(kWidth, cell_height * double(count), fmt::format("Attention map of layer {}, head {}", map.layer, map.head),
          "heat");
  for (size_t i = 0; i < map.tokens.size(); ++i)
    svg.text(left - 6, cell_height * (double(i) + 0.5) + 4.5, token_label(map.tokens[i], 7), "end", "token");
  svg.rect(left, 0, kWidth - left, cell_height * double(count), "q0");
  std::map<int, std::string> by_level;
  for (size_t i = 0; i < count; ++i) {
    const auto& row = map.weights[i];
    for (size_t j = 0; j < row.size() && j <= i;) {
      // Adjacent cells of equal color are merged into one rectangle.
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
