// A recipe as data: one file of configs/repro/ (docs/recipes.md describes every key), read once and checked at
// every scale. recipe_plan.cc makes steps of it, recipe_claims.cc findings, recipe_tables.cc tables.
#pragma once
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "repro/recipe.h"

namespace lazy::repro {

// What stands for {name} in a text.
using Variables = std::map<std::string, std::string>;

// `for_NAME = [...]`: one copy of the section for every value; `each_NAME`: lists of equal length that run together.
struct Loops {
  std::vector<std::pair<std::string, Words>> product, together;
};

struct ModelSpec {
  std::string where, name, kind, like, budget;
  Words overrides, files, scales;                // scales: where it is trained; empty: at all
  std::map<std::string, Words> at_scale;         // further overrides
  std::map<std::string, Words> files_at;         // configurations that it extends at a scale
  std::map<std::string, Words> alternatives_at;  // of which its trials choose one
  Words trial;                                   // overrides that make a trial of a training
  Loops loops;
};

struct StepSpec {
  std::string where, kind, id, experiment, of, model, name, cache, needs, piece;
  Words models, beside, kinds, settings, settings_cpu, settings_cuda;
  int64_t seeds = 0;
  Loops loops;
};

// A function of a step's values (measure_kinds.h) and its options.
struct MeasureSpec {
  std::string where, name, step, kind = "numbers", path, minus, per, map, of_head, most, unit, items;
  double factor = 1;
  std::vector<double> layers;  // first and last, of 24; of a toy's tokens: ranks
  std::vector<double> row;     // the first published row, for the kind that looks for it
};

struct ClaimSpec {
  std::string where, text, paper, form = "difference", measure, from, under_measure, over, under, unit, side, printed;
  std::string family;  // claims of one share a Holm correction
  std::string pace;    // at equal time: a measure of what a token's training takes, over / under
  std::string units = "seeds", or_measure, less, otherwise, otherwise_input, needs, needs_side;
  Words scales, comparable, when_any, when_none, needs_models;
  double factor = 1, bound = 0, within = 0, needs_bound = 0;
  bool variance = false;
  // Claims that follow from the published table.
  std::string from_published, reference;
  Words rows, columns;
  Loops loops;
};

// A table of the report: a row for every round of the loops, first words, then a measure of model `over` in each cell.
struct TableSpec {
  std::string where, title, over;
  Words columns, names, cells;
  Loops loops;
};

// A figure below the table of this title: for the model of each of its rows with `values` a row of marks, else a curve
// through the points (x, y), each a measure or a number.
struct FigureSpec {
  std::string where, table, file, title, values, x_label, y_label;
  Words x, y;
};

// "Which should I use?" of these models, in particular whether `asked` rather than `against`.
struct ChoiceSpec {
  std::string title, asked, against;
  Words models;
};
struct CriterionSpec {
  std::string where, name, measure, better;  // "lower" or "higher"
};

// A table of the models in the order of a measure, beside that of a published column. `groups`: endings of the rows'
// names, each ordered on its own ("340M").
struct OrderSpec {
  std::string where, title, measure, column;
  bool lowest_first = false;
  Words groups;
};

struct PublishedColumn {
  std::string title, words, measure, unit;  // words: the title within a claim
  double factor = 1;                        // from the published unit to the measure's
  std::string in;                           // "%" behind a published number
};
struct PublishedRowSpec {
  PublishedRow row;
  std::string model_below_paper;
};

struct RecipeFile {
  std::string file, name, title, source, budget;
  Words models, notes, pictures;
  std::map<std::string, Words> at_scale;     // overrides of every model
  std::map<std::string, std::string> means;  // by scale: its line in the place of the scale's own; empty: that
  std::map<std::string, Words> variables;    // by scale: tiny, small, paper
  std::vector<ModelSpec> own_models;
  std::vector<StepSpec> steps;
  std::vector<MeasureSpec> measures;  // shared ones follow the file's own
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

// Error names the file, the line or section, what was expected and what was found.
RecipeFile read_recipe(const std::string& text, const std::string& file);
Recipe recipe_of(const RecipeFile& data);

// Replaces {name}; a name that is not a variable is an error at `where`.
std::string fill(const std::string& text, const Variables& variables, const std::string& where);
Words fill(const Words& texts, const Variables& variables, const std::string& where);
// `variables` with those of every round of the loops. A list [@domains] is that of the conditions.
std::vector<Variables> rounds(const Loops& loops, const Variables& variables, const Conditions& conditions,
                              const std::string& where);
Variables variables_of(const RecipeFile& data, const Conditions& conditions);
// Of the recipe's models, of every scale.
Words model_names(const RecipeFile& data, const Conditions& conditions, const Variables& variables);

// recipe_plan.cc
std::vector<Step> plan_of(const RecipeFile& data, const Conditions& conditions);
Budget find_budget(const std::string& name, const std::string& where);
// recipe_claims.cc
std::vector<Finding> judge_of(const RecipeFile& data, const Conditions& conditions, const Results& results);
// The name of a row's model at this scale; empty: none.
std::string model_at(const PublishedRowSpec& row, const Scale& scale);
// recipe_tables.cc: those of which something is measured, orders first
std::vector<ResultTable> tables_of(const RecipeFile& data, const Conditions& conditions, const Results& results);
// recipe_figures.cc: those of a table of which something is measured
std::vector<Figure> figures_of(const RecipeFile& data, const Conditions& conditions, const Results& results,
                               const TableSpec& table);
// recipe_choice.cc
std::optional<Choice> choice_of(const RecipeFile& data, const Conditions& conditions, const Results& results);
// A measure by its name, or "STEP:PATH"; with its variables filled.
MeasureSpec find_measure(const RecipeFile& data, const std::string& name, const std::string& where);
MeasureSpec filled_measure(const RecipeFile& data, const std::string& name, const Variables& variables,
                           const std::string& where);
// The values of a model's step, or of the step of this name where no model is given; nullptr: not run.
const Json* step_values(const Results& results, const std::string& step, const std::string& model, int64_t seed);
// By seed; none where a seed is not measured.
using BySeed = std::vector<std::optional<double>>;
// Means over items.
BySeed seed_values(const MeasureSpec& measure, const std::string& model, const Results& results);
std::vector<double> present(const BySeed& values);
// Of the seeds that both have: a minus b.
UnitEstimate paired_difference(const BySeed& a, const BySeed& b);
// Whether the interval leaves out zero; false without one.
bool differs_from_zero(const UnitEstimate& difference);

}  // namespace lazy::repro
