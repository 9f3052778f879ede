// A recipe's report: what was tested, the paper's value, ours, and the verdict, as Markdown, JSON and one HTML page.
#pragma once
#include <filesystem>
#include <optional>
#include <string>

#include "repro/evidence/steps.h"
#include "repro/runner.h"

namespace lazy::repro {

Json to_json(const RecipeRun& run);
// `figures`: of the tables, which stand as files beside the page.
std::string to_markdown(const RecipeRun& run, bool figures = false);
std::string to_html(const RecipeRun& run);  // in report_html.cc

// One row a model: what its steps measured, means over texts.
struct MeasuredRow {
  std::string name;
  std::vector<std::string> cells;
};
inline const std::vector<std::string> kMeasuredColumns = {
    "parameters",    "tokens",         "tokens/s",
    "held-out loss", "sink ratio",     "density",
    "released mass", "alive fraction", "WikiText, perplexity a word",
    "average score"};
std::vector<MeasuredRow> measured_rows(const RecipeRun& run);
std::vector<ResultTable> result_tables(const RecipeRun& run);  // the recipe's own
std::optional<Choice> choice(const RecipeRun& run);

std::string interval_text(const Finding& finding);                       // "-0.0123 [-0.02, -0.004] nats a token"
std::string over_text(const Finding& finding);                           // "3 seeds", "100 texts"
std::string p_text(const Finding& finding);                              // the adjusted p
std::string verdict_text(const Finding& finding, const RecipeRun& run);  // "reproduced (tiny scale, lazy, softmax)"
std::string devices(const RecipeRun& run);                               // of the finished steps
bool trains(const RecipeRun& run);                                       // whether a model is trained for it
bool has_scale(const RecipeRun& run);       // experiments on given models and on toys have none
std::string summary(const RecipeRun& run);  // "3 reproduced, 1 refuted, 2 open"
std::string cautions(
    const RecipeRun& run);  // what was not run, what a small scale leaves open: sentences; empty: neither

// When a recipe was last run below an output folder, from the records of its reports' steps.
struct LastRun {
  std::string scale, date;
  int64_t seeds = 1;
  int64_t missing = 0;  // steps of the seed that were not run
};
// From records of `lazy repro evidence`: the seeds of which they have every step, but what needs the benchmarks' files;
// or else the first seed, if they have its trainings and some of what is measured on them.
std::optional<LastRun> last_run(const Recipe& recipe, const Conditions& conditions, const RecordedRuns& records);
std::optional<LastRun> last_run(const std::string& recipe, const std::filesystem::path& output);

// Writes the page and its figures beside it.
void write_page(const RecipeRun& run, const std::filesystem::path& page);
// Writes NAME.md, NAME.json and NAME.html into `folder`; returns the Markdown's path.
std::filesystem::path write_report(const RecipeRun& run, const std::filesystem::path& folder);

}  // namespace lazy::repro
