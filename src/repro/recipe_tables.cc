// The tables of a recipe file: every cell a measure of a model, the mean over seeds.
#include <fmt/format.h>

#include "core/known_names.h"
#include "core/statistics.h"
#include "repro/measure_kinds.h"
#include "repro/recipe_file.h"

namespace lazy::repro {
namespace {

// The mean over seeds with its interval, or the mean median and quartiles of what was measured repeatedly.
std::string cell_text(const MeasureSpec& measure, const std::string& model, const Results& results) {
  std::vector<double> median, low, high;
  for (int64_t seed = 1; seed <= results.seeds(); ++seed) {
    const Json* values = step_values(results, measure.step, model, seed);
    const Json found = values && measure.kind == "numbers" ? at_path(*values, measure.path) : Json();
    if (!found.is_object() || !found.contains("median")) continue;
    median.push_back(found.at("median").get<double>());
    low.push_back(found.at("quartiles").at(0).get<double>());
    high.push_back(found.at("quartiles").at(1).get<double>());
  }
  if (!median.empty()) return fmt::format("{:.4g} ({:.4g}–{:.4g})", mean_of(median), mean_of(low), mean_of(high));
  const auto numbers = present(seed_values(measure, model, results));
  if (numbers.empty()) return "–";
  const auto interval = over_units(numbers, {}).interval;
  if (!interval) return fmt::format("{:.3g}", numbers.front());
  return fmt::format("{:.4g} [{:.4g}, {:.4g}]", mean_of(numbers), interval->low, interval->high);
}

}  // namespace

std::vector<ResultTable> tables_of(const RecipeFile& data, const Conditions& conditions, const Results& results) {
  const Variables variables = variables_of(data, conditions);
  const Words models = model_names(data, conditions, variables);
  std::vector<ResultTable> out;
  for (const TableSpec& spec : data.tables) {
    ResultTable table{fill(spec.title, variables, spec.where), fill(spec.columns, variables, spec.where), {}};
    bool measured = false;
    for (const Variables& v : rounds(spec.loops, variables, conditions, spec.where)) {
      Words row = fill(spec.names, v, spec.where);
      const std::string model = fill(spec.over, v, spec.where);
      if (!model.empty()) expect_known(spec.where + " over", model, models, "a model of the recipe");
      for (const std::string& cell : fill(spec.cells, v, spec.where)) {
        const MeasureSpec measure = filled_measure(data, cell, v, spec.where);
        row.push_back(cell_text(measure, model, results));
        measured |= row.back() != "–";
      }
      table.rows.push_back(std::move(row));
    }
    if (!measured) continue;
    table.figures = figures_of(data, conditions, results, spec.title);
    out.push_back(std::move(table));
  }
  return out;
}

}  // namespace lazy::repro
