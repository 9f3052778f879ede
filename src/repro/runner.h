// Runs the plan of a recipe. Each finished step is recorded, so that an interrupted run resumes with the next step.
//
//   OUTPUT/SCALE/steps/ID-KEY/record.json   the result of a finished step; KEY is a hash of all its inputs
//   OUTPUT/SCALE/steps/ID-KEY/run/          for a training: its run folder (docs/reference/run-directory.md), resumable
//   OUTPUT/SCALE/RECIPE.md, .json, .html    the report
#pragma once
#include <filesystem>
#include <functional>
#include <string>
#include <vector>

#include "repro/recipe.h"

namespace lazy::repro {

struct RunOptions {
  Conditions conditions;
  std::filesystem::path output = "repro";
  // Folder of records of `lazy repro evidence` that can replace steps (evidence/steps.h). Ignored if empty or not a
  // folder.
  std::filesystem::path records;
  std::vector<std::string> text;  // files or folders that a corpus is built from if none is given (tiny scale)
  std::vector<std::string> only;  // step ids: run these steps and the trainings that they measure; empty: run all steps
  bool progress = true;
  std::function<Json(const Json& settings)>
      latency;  // measures the attention latency; set by callers that link the benchmarks
};

struct StepRun {
  Step step;
  std::filesystem::path folder;  // empty if the step is skipped
  Json record;                   // content of record.json; null if not finished
  std::string left_out;          // the reason if the step is skipped
  bool found = false;            // true if the step was already finished before this run
  std::string evidence;          // the run of `lazy repro evidence` whose record replaces this step
};

struct RecipeRun {
  const Recipe* recipe = nullptr;
  Conditions conditions;
  std::vector<StepRun> steps;
  std::vector<Finding> findings;  // run_recipe leaves this empty while steps are unfinished
  std::string command, date;
  int64_t unfinished = 0;  // number of steps that are not finished
};

// Returns the values of the recorded steps. The pieces of a measurement are merged.
Results results_of(const RecipeRun& run);
// Returns the values of single steps without merging pieces, or null for a step that is not recorded.
StepValues recorded_values(const RecipeRun& run);

// Returns the plan, or the part of it that `only` names, with the results that are already recorded. Runs nothing. If
// the corpus does not exist yet, every step is treated as unfinished.
RecipeRun plan_recipe(const Recipe& recipe, const RunOptions& options);
// Throws an Error if data is missing that the scale requires, and Interrupted if a signal requested a stop.
RecipeRun run_recipe(const Recipe& recipe, RunOptions options);
// Computes the findings from the recorded steps without running anything. A finding that depends on a missing step has
// the verdict `open`. Returns no findings if nothing is recorded.
RecipeRun judge_finished(const Recipe& recipe, const RunOptions& options);

// Returns the text of Perl's manual if it is installed, otherwise an empty list. `make demo` also uses this text.
std::vector<std::string> demo_text();

}  // namespace lazy::repro
