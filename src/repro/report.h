// The report of a recipe: the tested statements, the values in the paper, the measured values and the verdicts, as
// Markdown, JSON and one HTML page.
#pragma once
#include <filesystem>
#include <optional>
#include <string>

#include "repro/evidence/steps.h"
#include "repro/runner.h"

namespace lazy::repro {

Json to_json(const RecipeRun& run);
// `figures`: whether the figures of the tables are linked as files next to the page.
std::string to_markdown(const RecipeRun& run, bool figures = false);
std::string to_html(const RecipeRun& run);  // in report_html.cc

// The measured values of one model, as means over texts.
struct MeasuredRow {
  std::string name;
  std::vector<std::string> cells;
};
inline const std::vector<std::string> kMeasuredColumns = {
    "parameters",    "tokens",         "tokens/s",
    "held-out loss", "sink ratio",     "density",
    "released mass", "alive fraction", "WikiText, perplexity per word",
    "average score"};
std::vector<MeasuredRow> measured_rows(const RecipeRun& run);
std::vector<ResultTable> result_tables(const RecipeRun& run);  // the tables that the recipe defines
std::optional<Choice> choice(const RecipeRun& run);

// For example "-0.0123 [-0.02, -0.004] nats per token".
std::string interval_text(const Finding& finding);
std::string over_text(const Finding& finding);  // for example "3 seeds" or "100 texts"
std::string p_text(const Finding& finding);     // the adjusted p
// For example "reproduced (tiny scale, lazy, softmax)".
std::string verdict_text(const Finding& finding, const RecipeRun& run);
std::string devices(const RecipeRun& run);  // devices of the finished steps
bool trains(const RecipeRun& run);          // whether the recipe trains a model
bool has_scale(const RecipeRun& run);       // false for experiments on given models and on toys
std::string summary(const RecipeRun& run);  // for example "3 reproduced, 1 refuted, 2 open"
std::string cautions(
    const RecipeRun& run);  // sentences on steps that were not run and on the limits of a small scale; may be empty

// The last run of a recipe.
struct LastRun {
  std::string scale, date;
  int64_t seeds = 1;
  int64_t missing = 0;  // number of steps that were not run
};
// Returns the last run according to the records of `lazy repro evidence`. A seed is included if every step is recorded,
// except steps that need the benchmark files. If no seed is complete, the first seed is included if its trainings and
// at least one of their measurements are recorded.
std::optional<LastRun> last_run(const Recipe& recipe, const Conditions& conditions, const RecordedRuns& records);
// Returns the last run according to the reports and records in an output folder.
std::optional<LastRun> last_run(const std::string& recipe, const std::filesystem::path& output);

// Writes the page, and its figures into the same folder.
void write_page(const RecipeRun& run, const std::filesystem::path& page);
// Writes NAME.md, NAME.json and NAME.html into `folder` and returns the path of the Markdown file.
std::filesystem::path write_report(const RecipeRun& run, const std::filesystem::path& folder);

}  // namespace lazy::repro
