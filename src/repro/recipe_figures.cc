// Draws the figures of a recipe file: for every model, either one mark per seed or one curve.
#include <fmt/format.h>

#include <charconv>

#include "core/statistics.h"
#include "report/dot_plot.h"
#include "report/plot.h"
#include "report/style.h"
#include "repro/measure_kinds.h"
#include "repro/recipe_file.h"

namespace lazy::repro {
namespace {

constexpr double kWidth = 860, kHeight = 400;  // wide enough for a legend with seven names in one line

// A row of the table that belongs to the figure; it is drawn as a row of dots or as a curve.
struct Round {
  Variables variables;
  std::string model;
};

std::optional<Figure> dots(const RecipeFile& data, const FigureSpec& spec, const std::vector<Round>& all,
                           const Results& results) {
  report::DotPlot plot;
  plot.x_label = spec.x_label;
  bool measured = false;
  for (size_t n = 0; n < all.size(); ++n) {
    report::DotRow row{all[n].model, n, {}, {}};
    const auto by_seed =
        seed_values(filled_measure(data, spec.values, all[n].variables, spec.where), all[n].model, results);
    for (size_t seed = 0; seed < by_seed.size(); ++seed) {
      if (by_seed[seed]) row.values.emplace_back(static_cast<int>(seed), *by_seed[seed]);
    }
    row.interval = over_units(present(by_seed), {}).interval;
    measured |= !row.values.empty();
    plot.rows.push_back(std::move(row));
  }
  if (!measured) return std::nullopt;
  plot.label = spec.title + ": one mark per seed, 95 % intervals of the mean";
  return Figure{"", spec.title, report::draw(plot, kWidth), kWidth, report::height_of(plot), plot.label};
}

// Returns a literal number, or the mean of a measured value over seeds.
std::optional<double> coordinate(const RecipeFile& data, const FigureSpec& spec, const std::string& written,
                                 const Round& round, const Results& results) {
  const std::string text = fill(written, round.variables, spec.where);
  double number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error == std::errc() && end == text.data() + text.size()) return number;
  const auto values =
      present(seed_values(filled_measure(data, text, round.variables, spec.where), round.model, results));
  return values.empty() ? std::nullopt : std::optional(mean_of(values));
}

std::optional<Figure> curves(const RecipeFile& data, const FigureSpec& spec, const std::vector<Round>& all,
                             const Results& results) {
  report::Plot plot;
  plot.x_label = spec.x_label;
  plot.y_label = spec.y_label;
  plot.x_ticks = report::Plot::XTicks::counts;
  for (size_t n = 0; n < all.size(); ++n) {
    report::Curve curve{{}, "curve " + report::series_class(n), true, report::series_mark(n)};
    plot.legend.emplace_back(all[n].model, curve);
    for (size_t i = 0; i < spec.x.size(); ++i) {
      const auto x = coordinate(data, spec, spec.x[i], all[n], results),
                 y = coordinate(data, spec, spec.y[i], all[n], results);
      if (x && y) curve.points.emplace_back(*x, *y);
    }
    plot.curves.push_back(std::move(curve));
  }
  if (!report::fit_axes(plot)) return std::nullopt;
  report::add_room(plot.x_low, plot.x_high);
  report::add_room(plot.y_low, plot.y_high);
  plot.label = spec.title + ": one curve per model, means over seeds";
  return Figure{"", spec.title, report::draw(plot, kWidth, kHeight), kWidth, kHeight, plot.label};
}

}  // namespace

std::vector<Figure> figures_of(const RecipeFile& data, const Conditions& conditions, const Results& results,
                               const TableSpec& table) {
  std::vector<Round> all;
  for (Variables& v : rounds(table.loops, variables_of(data, conditions), conditions, table.where)) {
    std::string model = fill(table.over, v, table.where);
    all.push_back({std::move(v), std::move(model)});
  }
  std::vector<Figure> out;
  for (const FigureSpec& spec : data.figures) {
    if (spec.table != table.title) continue;
    auto figure = spec.values.empty() ? curves(data, spec, all, results) : dots(data, spec, all, results);
    if (!figure) continue;
    figure->file = fmt::format("{}-{}.svg", data.name, spec.file);
    out.push_back(std::move(*figure));
  }
  return out;
}

}  // namespace lazy::repro
