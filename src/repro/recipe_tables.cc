// The tables of a recipe file. A cell contains a measured value of a model, averaged over seeds. Additional tables
// order the models by a measured value and compare this order with the published order.
#include <fmt/format.h>

#include <algorithm>
#include <map>

#include "core/known_names.h"
#include "core/statistics.h"
#include "repro/measure_kinds.h"
#include "repro/recipe_file.h"

namespace lazy::repro {
namespace {

// Formats the mean with its confidence interval over seeds, for example "5.21 [5.2, 5.22]". Without an interval,
// formats only the mean with `digits` digits.
std::string with_interval(const UnitEstimate& e, int digits = 4) {
  if (e.by_unit.empty()) return "–";
  if (!e.interval) return fmt::format("{:.{}g}", e.value, digits);
  return fmt::format("{:.4g} [{:.4g}, {:.4g}]", e.value, e.interval->low, e.interval->high);
}

// Returns the mean over seeds with its interval; for repeated measurements, the means of the medians and quartiles.
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
  return with_interval(over_units(present(seed_values(measure, model, results)), {}), 3);
}

struct Placed {
  std::string model;
  BySeed seeds;
  UnitEstimate here;
};

// Returns the models ordered by a measured value, best first according to `spec`. Models that are not measured are
// omitted.
std::vector<Placed> placed_models(const RecipeFile& data, const OrderSpec& spec, const Conditions& conditions,
                                  const Results& results, const PublishedColumn& column) {
  const MeasureSpec measure = find_measure(data, spec.measure.empty() ? column.measure : spec.measure, spec.where);
  Words models;
  for (const Step& step : plan_of(data, conditions)) {
    if (step.kind == StepKind::train && !step.trial && step.seed == 1) models.push_back(step.id);
  }
  for (const PublishedRowSpec& row : data.rows) {
    if (const std::string model = model_at(row, conditions.scale); !model.empty() && !contains(models, model))
      models.push_back(model);  // a trained model that is measured with a different cache
  }
  std::vector<Placed> out;
  for (const std::string& model : models) {
    Placed p{model, seed_values(measure, model, results), {}};
    for (auto& value : p.seeds) {
      if (value && spec.measure.empty()) *value /= column.factor;
    }
    p.here = over_units(present(p.seeds), {});
    if (!p.here.by_unit.empty()) out.push_back(std::move(p));
  }
  std::stable_sort(out.begin(), out.end(), [&spec](const Placed& a, const Placed& b) {
    return spec.lowest_first ? a.here.value < b.here.value : a.here.value > b.here.value;
  });
  return out;
}

// Returns the published values of the rows in a group, by model.
std::map<std::string, double> published_values(const RecipeFile& data, const std::string& group, size_t column,
                                               const Scale& scale) {
  std::map<std::string, double> out;
  for (const PublishedRowSpec& row : data.rows) {
    const std::string model = model_at(row, scale);
    if (!model.empty() && row.row.name.ends_with(group)) out.emplace(model, row.row.values[column]);
  }
  return out;
}

// Counts the pairs of models whose order agrees with the published order.
std::string agreement(const std::vector<Placed>& placed, const std::map<std::string, double>& published,
                      const OrderSpec& spec, const std::string& group) {
  int64_t same = 0, other = 0, same_sure = 0, other_sure = 0;
  for (size_t a = 0; a < placed.size(); ++a) {
    for (size_t b = a + 1; b < placed.size(); ++b) {
      const auto first = published.find(placed[a].model), second = published.find(placed[b].model);
      if (first == published.end() || second == published.end() || first->second == second->second) continue;
      const bool sure = differs_from_zero(paired_difference(placed[a].seeds, placed[b].seeds));
      const bool agrees = (first->second < second->second) == spec.lowest_first;
      (agrees ? same : other) += 1;
      if (sure) (agrees ? same_sure : other_sure) += 1;
    }
  }
  return fmt::format(
      "{}: the paper orders {} pairs of models. {} pairs have the same order here ({} with an interval that excludes "
      "zero), {} the "
      "opposite order ({}).",
      group.empty() ? "All rows" : group, same + other, same, same_sure, other, other_sure);
}

ResultTable order_table(const RecipeFile& data, const OrderSpec& spec, const Conditions& conditions,
                        const Results& results) {
  const Words& titles = data.published.columns;
  const auto number = static_cast<size_t>(std::find(titles.begin(), titles.end(), spec.column) - titles.begin());
  const std::vector<Placed> placed = placed_models(data, spec, conditions, results, data.columns[number]);
  ResultTable table{spec.title, {"place", "model", "here", "difference to the next"}, {}};
  for (size_t n = 0; n < placed.size(); ++n) {
    table.rows.push_back(
        {std::to_string(n + 1), placed[n].model, with_interval(placed[n].here),
         n + 1 < placed.size() ? with_interval(paired_difference(placed[n].seeds, placed[n + 1].seeds)) : "–"});
  }
  for (const std::string& group : spec.groups.empty() ? Words{""} : spec.groups) {
    const auto published = published_values(data, group, number, conditions.scale);
    table.columns.push_back(fmt::format("paper{}{}: place ({})", group.empty() ? "" : ", ", group, spec.column));
    for (size_t n = 0; n < placed.size(); ++n) {
      const auto found = published.find(placed[n].model);
      const auto before = [&](const auto& row) {
        return spec.lowest_first ? row.second < found->second : row.second > found->second;
      };
      table.rows[n].push_back(
          found == published.end()
              ? "–"
              : fmt::format("{} ({:g})", 1 + std::count_if(published.begin(), published.end(), before), found->second));
    }
    if (!table.note.empty()) table.note += " ";
    table.note += agreement(placed, published, spec, group);
  }
  return table;
}

}  // namespace

std::vector<ResultTable> tables_of(const RecipeFile& data, const Conditions& conditions, const Results& results) {
  const Variables variables = variables_of(data, conditions);
  const Words models = model_names(data, conditions, variables);
  std::vector<ResultTable> out;
  for (const OrderSpec& spec : data.orders) {
    if (ResultTable table = order_table(data, spec, conditions, results); !table.rows.empty())
      out.push_back(std::move(table));
  }
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
    table.figures = figures_of(data, conditions, results, spec);
    out.push_back(std::move(table));
  }
  return out;
}

}  // namespace lazy::repro
