#include "repro/vector_tables.h"

#include <fmt/format.h>

#include <array>
#include <cmath>

#include "core/text.h"
#include "report/html.h"
#include "report/sections.h"
#include "repro/pictures.h"

namespace lazy::repro {
namespace {

double entry(const Json& values, const char* input, const char* place, const char* what, size_t layer, size_t head,
             size_t position) {
  return values.at(input).at(place).at(what).at(layer).at(head).at(position).get<double>();
}

struct Cell {
  const char* place;
  size_t head;
};

// Returns the probe and the head whose vectors are printed in the columns Q, K and V for head `h`. If `cut` is set,
// BLOOM's fused projection is cut into three blocks of heads, and block h of each belongs to a different head.
std::array<Cell, 3> columns(const Json& values, size_t h, bool cut) {
  static constexpr const char* places[] = {"attention.q.projected", "attention.k.projected", "attention.v"};
  const auto heads = values.at("heads").get<size_t>(), group = heads / values.at("kv_heads").get<size_t>();
  if (!cut) return {{{places[0], h}, {places[1], h / group}, {places[2], h / group}}};
  std::array<Cell, 3> out;
  for (size_t part = 0; part < 3; ++part) {
    const size_t block = part * heads + h;
    out[part] = {places[block % 3], block / 3};
  }
  return out;
}

}  // namespace

std::vector<double> table_row(const Json& values, const char* input, size_t layer, size_t head, size_t position,
                              bool hidden, bool cut) {
  if (hidden)
    return {entry(values, input, "attention.input", "norm", layer, 0, position),
            entry(values, input, "attention.input", "variance", layer, 0, position)};
  std::vector<double> out;
  for (const char* what : {"norm", "variance"}) {
    for (const Cell& c : columns(values, head, cut))
      out.push_back(entry(values, input, c.place, what, layer, c.head, position));
  }
  return out;
}

RowMatch nearest_row(const Json& values, const std::vector<double>& printed) {
  const bool hidden = printed.size() == 2;
  RowMatch best;
  const auto layers = values.at("layers").get<size_t>(), heads = hidden ? size_t{1} : values.at("heads").get<size_t>();
  for (size_t layer = 0; layer < layers; ++layer) {
    for (size_t head = 0; head < heads; ++head) {
      for (const bool cut : {false, true}) {
        if (cut && (hidden || values.at("family") != "bloom")) continue;
        const auto row = table_row(values, "natural", layer, head, 0, hidden, cut);
        double distance = 0;
        for (size_t n = 0; n < row.size(); ++n) distance += std::abs(row[n] / printed[n] - 1);
        if (distance < best.distance) best = {layer, head, cut, distance};
      }
    }
  }
  return best;
}

namespace {

std::string table_html(const Json& values, const std::vector<double>& printed, const char* input,
                       const RowMatch& match) {
  const bool hidden = printed.size() == 2;
  report::Table out{.column_scope = false, .columns = {{"token"}}};
  for (const char* head :
       hidden ? std::vector<const char*>{"norm", "variance", "norm, residual stream", "variance, residual stream"}
              : std::vector<const char*>{"Q norm", "K norm", "V norm", "Q variance", "K variance", "V variance"})
    out.columns.push_back({head});
  const bool natural = input == std::string("natural");
  for (size_t position = 0; position < values.at("ids").size(); ++position) {
    report::Table::Row& line = out.rows.emplace_back();
    line.title = html_escape(natural ? values.at("tokens").at(position).get<std::string>()
                                     : fmt::format("id {}", values.at("repeated_id").get<int64_t>()));
    auto row = table_row(values, input, match.layer, match.head, position, hidden, match.cut);
    if (hidden) {
      for (const char* what : {"norm", "variance"})
        row.push_back(entry(values, input, "residual", what, match.layer, 0, position));
    }
    for (const double v : row) line.cells.push_back(fmt::format("{:.4f}", v));
  }
  return report::to_html(out);
}

}  // namespace

std::string draw_vectors(const Json& values, const std::vector<double>& printed) {
  const bool hidden = printed.size() == 2;
  const RowMatch match = nearest_row(values, printed);
  return fmt::format("<p>Layer {}{}.</p>", match.layer,
                     hidden ? ""
                            : fmt::format(", head {}{}", match.head,
                                          match.cut ? ", fused projection cut into three blocks" : "")) +
         "<h4>Natural text</h4>" + table_html(values, printed, "natural", match) + "<h4>One token repeated</h4>" +
         table_html(values, printed, "repeated", match);
}

}  // namespace lazy::repro
