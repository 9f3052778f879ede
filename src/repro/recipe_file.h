// The content of a recipe file of configs/repro/ (docs/reference/recipes.md describes every key). The file is read only
// once and checked for every scale. recipe_plan.cc converts it to steps, recipe_claims.cc to findings, recipe_tables.cc
// to tables.
#pragma once
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "repro/recipe.h"

namespace lazy::repro {

// Maps variable names to the values that replace {name} in a text.
using Variables = std::map<std::string, std::string>;

// Loop variables. `for_NAME = [...]` makes one copy of the section for every value (`product`). Lists `each_NAME` must
// have equal lengths; their n-th values are used together (`together`).
struct Loops {
  std::vector<std::pair<std::string, Words>> product, together;
};

struct ModelSpec {
  std::string where, name, kind, like, budget;
  Words overrides, files, scales;                // scales: the scales at which the model is trained; empty: all
  std::map<std::string, Words> at_scale;         // additional overrides by scale
  std::map<std::string, Words> files_at;         // configurations that the model extends, by scale
  std::map<std::string, Words> alternatives_at;  // candidate overrides by scale; trials select one
  Words trial;                                   // overrides that shorten a training to a trial
  Loops loops;
};

struct StepSpec {
  std::string where, kind, id, experiment, of, model, name, cache, needs, piece;
  Words models, beside, kinds, settings, settings_cpu, settings_cuda;
  int64_t seeds = 0;
  Loops loops;
};

// A function of the values of a step (measure_kinds.h) and its options.
struct MeasureSpec {
  std::string where, name, step, kind = "numbers", path, minus, per, map, of_head, most, unit, items;
  double factor = 1;
  std::vector<double> layers;  // first and last layer, for a model with 24 layers; for tokens of a toy model: ranks
  std::vector<double> row;     // the published row to search for, used by kind nearest_row
};

struct ClaimSpec {
  std::string where, text, paper, form = "difference", measure, from, under_measure, over, under, unit, side, printed;
  std::string family;  // claims with the same family share a Holm correction
  std::string pace;    // for comparisons at equal time: measure of the ratio of time per token, over / under
  std::string units = "seeds", or_measure, less, otherwise, otherwise_input, needs, needs_side;
  Words scales, comparable, when_any, when_none, needs_models;
  double factor = 1, bound = 0, within = 0, needs_bound = 0;
  bool variance = false;
  // Claims that follow from the published table.
  std::string from_published, reference;
  Words rows, columns;
  Loops loops;
};

// A table of the report, with one row per iteration of the loops. A row begins with fixed words, followed by one cell
// per measure of model `over`.
struct TableSpec {
  std::string where, title, over;
  Words columns, names, cells;
  Loops loops;
};

// A figure that is printed after the table with the same title. For the model of each table row, it contains either one
// row of marks (if `values` is set) or a curve through the points (x, y), where each coordinate is a measure or a
// number.
struct FigureSpec {
  std::string where, table, file, title, values, x_label, y_label;
  Words x, y;
};

// Answers "Which should I use?" for these models, in particular whether to use `asked` instead of `against`.
struct ChoiceSpec {
  std::string title, asked, against;
  Words models;
};
struct CriterionSpec {
  std::string where, name, measure, better;  // better: "lower" or "higher"
};

// A table that orders the models by a measure and compares this order with the order by a published column. `groups`
// are suffixes of row names ("340M"); the rows of each group are ordered separately.
struct OrderSpec {
  std::string where, title, measure, column;
  bool lowest_first = false;
  Words groups;
};

struct PublishedColumn {
  std::string title, words, measure, unit;  // words: the title as it is used in a claim
  double factor = 1;                        // converts the published unit to the unit of the measure
  std::string in;                           // unit that is printed after a published number, for example "%"
};
struct PublishedRowSpec {
  PublishedRow row;
  std::string model_below_paper;
};

struct RecipeFile {
  std::string file, name, title, source, budget;
  Words models, notes, pictures;
  std::map<std::string, Words> at_scale;     // overrides for every model, by scale
  std::map<std::string, std::string> means;  // by scale: replaces the scale's description if not empty
  std::map<std::string, Words> variables;    // values for the scales tiny, small, paper
  std::vector<ModelSpec> own_models;
  std::vector<StepSpec> steps;
  std::vector<MeasureSpec> measures;  // the measures of this file, then the measures that all recipes share
  std::vector<ClaimSpec> claims;
  std::vector<TableSpec> tables;
  std::vector<FigureSpec> figures;
  std::vector<CriterionSpec> criteria;
  ChoiceSpec choice;
  std::vector<OrderSpec> orders;
  PublishedTable published;
  std::vector<PublishedColumn> columns;
  std::vector<PublishedRowSpec> rows;
};

// Errors name the file, the line or section, the expected value and the value found.
RecipeFile read_recipe(const std::string& text, const std::string& file);
Recipe recipe_of(const RecipeFile& data);

// Replaces {name} in a text; if the name is not a variable, an error is reported at `where`.
std::string fill(const std::string& text, const Variables& variables, const std::string& where);
Words fill(const Words& texts, const Variables& variables, const std::string& where);
// Returns one copy of `variables` per iteration of the loops, extended by the loop variables. The list [@domains]
// stands for the domains in `conditions`.
std::vector<Variables> rounds(const Loops& loops, const Variables& variables, const Conditions& conditions,
                              const std::string& where);
Variables variables_of(const RecipeFile& data, const Conditions& conditions);
// Returns the names of the recipe's models at every scale.
Words model_names(const RecipeFile& data, const Conditions& conditions, const Variables& variables);

// Functions that are defined in recipe_plan.cc:
std::vector<Step> plan_of(const RecipeFile& data, const Conditions& conditions);
Budget find_budget(const std::string& name, const std::string& where);
// Functions that are defined in recipe_claims.cc:
std::vector<Finding> judge_of(const RecipeFile& data, const Conditions& conditions, const Results& results);
// Returns the name of a row's model at this scale, or an empty string if the row has no model.
std::string model_at(const PublishedRowSpec& row, const Scale& scale);
// recipe_tables.cc: returns the tables that have at least one measured value; tables of orders come first.
std::vector<ResultTable> tables_of(const RecipeFile& data, const Conditions& conditions, const Results& results);
// recipe_figures.cc: returns those figures of a table that have at least one measured value.
std::vector<Figure> figures_of(const RecipeFile& data, const Conditions& conditions, const Results& results,
                               const TableSpec& table);
// Functions that are defined in recipe_choice.cc:
std::optional<Choice> choice_of(const RecipeFile& data, const Conditions& conditions, const Results& results);
// Finds a measure by its name or as "STEP:PATH". filled_measure also replaces the variables in the measure.
MeasureSpec find_measure(const RecipeFile& data, const std::string& name, const std::string& where);
MeasureSpec filled_measure(const RecipeFile& data, const std::string& name, const Variables& variables,
                           const std::string& where);
// Returns the values of a model's step, or of the step with this name if no model is given. Returns nullptr if the step
// was not run.
const Json* step_values(const Results& results, const std::string& step, const std::string& model, int64_t seed);
// One value per seed; nullopt for a seed that was not measured.
using BySeed = std::vector<std::optional<double>>;
// Returns the means over the items of a measure, by seed.
BySeed seed_values(const MeasureSpec& measure, const std::string& model, const Results& results);
std::vector<double> present(const BySeed& values);
// Returns the value of `a` minus the value of `b`, over the seeds for which both values exist.
UnitEstimate paired_difference(const BySeed& a, const BySeed& b);
// Whether the confidence interval excludes zero; false without an interval.
bool differs_from_zero(const UnitEstimate& difference);

}  // namespace lazy::repro
