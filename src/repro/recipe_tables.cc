// The tables of a recipe file: every cell a measure of a model, the mean over seeds.
#include <fmt/format.h>

#include "core/known_names.h"
#include "core/statistics.h"
#include "repro/measure_kinds.h"
#include "repro/recipe_file.h"

namespace lazy::repro {
namespace {

// A number, or the median and the quartiles of what was measured repeatedly.
std::string cell_text(const MeasureSpec& measure, const std::string& model, const Results& results) {
  std::vector<double> numbers, low, high;
  for (int64_t seed = 1; seed <= results.seeds(); ++seed) {
    const Json* values = results.find(model.empty() ? measure.step : training_id(model, seed) + "." + measure.step);
    if (!values) continue;
    const Json found = measure.kind == "numbers" ? at_path(*values, measure.path) : Json();
    if (found.is_object() && found.contains("median")) {
      numbers.push_back(found.at("median").get<double>());
      low.push_back(found.at("quartiles").at(0).get<double>());
      high.push_back(found.at("quartiles").at(1).get<double>());
      continue;
    }
    const Numbers plain = measured_numbers(*values, measure);
    if (!plain.items.empty()) numbers.push_back(mean_of(plain.items));
  }
  if (numbers.empty()) return "–";
  if (low.empty()) return fmt::format("{:.3g}", mean_of(numbers));
  return fmt::format("{:.4g} ({:.4g}–{:.4g})", mean_of(numbers), mean_of(low), mean_of(high));
}

}  // namespace

std::vector<ResultTable> tables_of(const RecipeFile& data, const Conditions& conditions, const Results& results) {
  const Variables variables = variables_of(data, conditions);
  const Words models = model_names(data, conditions, variables);
  std::vector<ResultTable> out;
  for (const TableSpec& spec : data.tables) {
    ResultTable table{fill(spec.title, variables, spec.where), spec.columns, {}};
    bool measured = false;
    for (const Variables& v : rounds(spec.loops, variables, conditions, spec.where)) {
      Words row = fill(spec.names, v, spec.where);
      const std::string model = fill(spec.over, v, spec.where);
      if (!model.empty()) expect_known(spec.where + " over", model, models, "a model of the recipe");
      for (const std::string& cell : fill(spec.cells, v, spec.where)) {
        MeasureSpec measure = find_measure(data, cell, spec.where);
        for (std::string* text : {&measure.path, &measure.minus, &measure.per}) *text = fill(*text, v, measure.where);
        row.push_back(cell_text(measure, model, results));
        measured |= row.back() != "–";
      }
      table.rows.push_back(std::move(row));
    }
    if (measured) out.push_back(std::move(table));
  }
  return out;
}

}  // namespace lazy::repro
