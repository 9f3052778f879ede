// Tables 4 to 7: norms and variances of queries, keys, values and hidden states, token by token, on the paper's
// sentence and on one token repeated, in the form of the tables and in the corrected one.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>

#include "core/statistics.h"
#include "core/text.h"
#include "report/html.h"
#include "report/sections.h"
#include "repro/recipes/given_models.h"

namespace lazy::repro {
namespace {

// The first row of each table's part (a).
struct PrintedTable {
  const char *recipe, *source, *model, *family;
  bool hidden;
  std::vector<double> row;  // Q, K, V norms and variances; or norm and variance
};
const std::vector<PrintedTable>& printed_tables() {
  static const std::vector<PrintedTable> all{
      {"table4", "paper, Table 4", "Qwen3-4B", "qwen3", false, {1.4618, 3.0660, 0.4614, 0.0168, 0.0717, 0.0017}},
      {"table5", "paper, Table 5", "Qwen3-4B", "qwen3", true, {7.1974, 0.0202}},
      {"table6", "paper, Table 6", "BLOOM", "bloom", false, {6.1174, 12.9978, 0.1502, 0.5761, 2.6465, 0.0004}},
      {"table7", "paper, Table 7", "BLOOM", "bloom", true, {37.6291, 1.3823}}};
  return all;
}

double entry(const Json& values, const char* input, const char* place, const char* what, size_t layer, size_t head,
             size_t position) {
  return values.at(input).at(place).at(what).at(layer).at(head).at(position).get<double>();
}

struct Cell {
  const char* place;
  size_t head;
};

// Whose vectors the columns Q, K, V show for head `h`. Where BLOOM's fused projection is cut into three blocks of
// heads, block h of each belongs to another head: `cut`.
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

// The layer and head whose first row is nearest to the printed one.
struct Match {
  size_t layer = 0, head = 0;
  bool cut = false;
  double distance = 1e300;
};
Match best_match(const Json& values, const PrintedTable& table) {
  Match best;
  const auto layers = values.at("layers").get<size_t>(),
             heads = table.hidden ? size_t{1} : values.at("heads").get<size_t>();
  for (size_t layer = 0; layer < layers; ++layer) {
    for (size_t head = 0; head < heads; ++head) {
      for (const bool cut : {false, true}) {
        if (cut && (table.hidden || values.at("family") != "bloom")) continue;
        const auto row = table_row(values, "natural", layer, head, 0, table.hidden, cut);
        double distance = 0;
        for (size_t n = 0; n < row.size(); ++n) distance += std::abs(row[n] / table.row[n] - 1);
        if (distance < best.distance) best = {layer, head, cut, distance};
      }
    }
  }
  return best;
}

// f of every layer and head of a place.
template <typename F>
std::vector<double> over_vectors(const Json& values, const char* input, const char* place, const char* what,
                                 const F& f) {
  std::vector<double> out;
  for (const Json& layer : values.at(input).at(place).at(what)) {
    for (const Json& head : layer) out.push_back(f(head.get<std::vector<double>>()));
  }
  return out;
}

// The first position's value over the mean of the others, less 1.
double first_over_others(const std::vector<double>& by_position) {
  const std::vector<double> others(by_position.begin() + 1, by_position.end());
  return by_position.front() / mean_of(others) - 1;
}

double relative_spread(const std::vector<double>& by_position) {
  return std::sqrt(variance_of(by_position)) / mean_of(by_position);
}

std::vector<Finding> judge_table(const GivenModel& model, const PrintedTable& table) {
  const std::string of = model.of, over = table.hidden ? "layers" : "layers and heads";
  const Json& values = model.values;
  std::vector<Finding> out;
  const auto sign = [&](const std::string& text, const std::string& paper, const std::vector<double>& numbers,
                        ExpectedSign published) {
    out.push_back(judge_sign({of + text, paper, "relative", over}, bootstrap_mean(numbers), published));
  };
  const std::vector<std::pair<const char*, std::string>> places =
      table.hidden
          ? std::vector<std::pair<const char*, std::string>>{{"attention.input",
                                                              "hidden states as the table has them (after the norm)"}}
          : std::vector<std::pair<const char*, std::string>>{{"attention.v", "values"}};
  for (const auto& [place, title] : places) {
    sign(fmt::format("{}: the first token's variance is below the others' (ratio less 1, natural text)", title),
         "markedly smaller (paper, appendix G)", over_vectors(values, "natural", place, "variance", first_over_others),
         ExpectedSign::negative);
  }
  if (table.hidden) {
    sign(
        "hidden states as they should be read (the residual stream): the first token's variance exceeds the others' "
        "(ratio less 1)",
        "much greater (paper, section 3.1)", over_vectors(values, "natural", "residual", "variance", first_over_others),
        ExpectedSign::positive);
  }
  for (const char* place :
       table.hidden ? std::vector<const char*>{"attention.input", "residual"}
                    : std::vector<const char*>{"attention.q.projected", "attention.k.projected", "attention.v"}) {
    auto change = over_vectors(values, "repeated", place, "variance", relative_spread);
    const auto natural = over_vectors(values, "natural", place, "variance", relative_spread);
    for (size_t n = 0; n < change.size(); ++n) change[n] -= natural[n];
    sign(fmt::format(
             "{}: under repetition variances flatten over positions (their relative spread, repeated minus natural)",
             place),
         "nearly uniform across positions (paper, appendix G)", change, ExpectedSign::negative);
  }
  const Match match = best_match(values, table);
  const auto row = table_row(values, "natural", match.layer, match.head, 0, table.hidden, match.cut);
  double equal = 0;
  std::string ours, printed;
  for (size_t n = 0; n < row.size(); ++n) {
    equal += std::abs(row[n] - table.row[n]) <= 5e-4 * std::max(1.0, std::abs(table.row[n]));  // a bf16 model's digits
    ours += fmt::format("{}{:.4f}", n ? ", " : "", row[n]);
    printed += fmt::format("{}{:.4f}", n ? ", " : "", table.row[n]);
  }
  const std::string where = table.hidden
                                ? fmt::format("layer {}", match.layer + 1)
                                : fmt::format("layer {}, head {}{}", match.layer + 1, match.head + 1,
                                              match.cut ? " of the fused projection cut into three blocks" : "");
  out.push_back(
      judge_count({fmt::format("{}row 0, natural text: the nearest of all layers{} is {} with {}; how many of the {} "
                               "numbers are the printed ones",
                               of, table.hidden ? "" : " and heads", where, ours, row.size()),
                   fmt::format("{} ({})", printed, table.source), "numbers", "sentence"},
                  equal, static_cast<double>(row.size()),
                  values.at("family") == table.family ? "" : fmt::format("the table is of {}", table.model)));
  return out;
}

std::string table_html(const Json& values, const PrintedTable& table, const char* input, const Match& match) {
  report::Table out{.column_scope = false, .columns = {{"token"}}};
  for (const char* head :
       table.hidden ? std::vector<const char*>{"norm", "variance", "norm, residual stream", "variance, residual stream"}
                    : std::vector<const char*>{"Q norm", "K norm", "V norm", "Q variance", "K variance", "V variance"})
    out.columns.push_back({head});
  const bool natural = input == std::string("natural");
  for (size_t position = 0; position < values.at("ids").size(); ++position) {
    report::Table::Row& line = out.rows.emplace_back();
    line.title = html_escape(natural ? values.at("tokens").at(position).get<std::string>()
                                     : fmt::format("id {}", values.at("repeated_id").get<int64_t>()));
    auto row = table_row(values, input, match.layer, match.head, position, table.hidden, match.cut);
    if (table.hidden) {
      for (const char* what : {"norm", "variance"})
        row.push_back(entry(values, input, "residual", what, match.layer, 0, position));
    }
    for (const double v : row) line.cells.push_back(fmt::format("{:.4f}", v));
  }
  return report::to_html(out);
}

std::string table_pictures(const Json& values, const PrintedTable& table) {
  const Match match = best_match(values, table);
  return fmt::format("<p>Layer {}{}.</p>", match.layer + 1,
                     table.hidden ? ""
                                  : fmt::format(", head {}{}", match.head + 1,
                                                match.cut ? ", fused projection cut into three blocks" : "")) +
         "<h4>Natural text</h4>" + table_html(values, table, "natural", match) + "<h4>One token repeated</h4>" +
         table_html(values, table, "repeated", match);
}

Recipe vector_table(const PrintedTable& table) {
  return given_model_recipe(
      {table.recipe,
       table.hidden ? fmt::format("norms and variances of hidden states ({})", table.model)
                    : fmt::format("norms and variances of queries, keys and values ({})", table.model),
       table.source,
       "vectors",
       Json::object(),
       {fmt::format("norms and variances of {}", table.model), table.source, "", ""},
       [&table](const GivenModel& model) { return judge_table(model, table); },
       {"--model is the folder of the table's model, or any other, of which the relations are tested.",
        "The tables call the normalized input of attention hidden states, with variances over n - 1; the residual "
        "stream is given beside "
        "it.",
        "Queries and keys are those that leave the projection, before norm and rotation. Layer and head are not "
        "printed: the nearest of all "
        "is shown, for BLOOM also with its fused projection cut into three blocks, as the authors' notebooks do."},
       "tables",
       "The table",
       [&table](const Json& values, int) { return table_pictures(values, table); }});
}

}  // namespace

std::vector<Recipe> tables4to7() {
  std::vector<Recipe> out;
  for (const PrintedTable& table : printed_tables()) out.push_back(vector_table(table));
  return out;
}

}  // namespace lazy::repro
