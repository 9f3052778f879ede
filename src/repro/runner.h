// Runs a recipe's plan. Each finished step is recorded, so that an interrupted run resumes with the next step.
//
//   OUTPUT/SCALE/steps/ID-KEY/record.json   what a finished step found; KEY is a hash of all its inputs
//   OUTPUT/SCALE/steps/ID-KEY/run/          of a training: its run folder (docs/run-directory.md), resumable
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
  // Records of `lazy repro evidence` (evidence/steps.h), which stand for steps; empty or no folder: none.
  std::filesystem::path records;
  std::vector<std::string> text;  // files or folders to make a corpus of where none is given (tiny scale)
  std::vector<std::string> only;  // ids of steps: run these and the trainings that they measure; empty: all
  bool progress = true;
  std::function<Json(const Json& settings)>
      latency;  // times attention; supplied by the caller that links the benchmarks
};

struct StepRun {
  Step step;
  std::filesystem::path folder;  // empty: left out
  Json record;                   // of record.json; null while it is not finished
  std::string left_out;          // why
  bool found = false;            // it was finished before this run
  std::string evidence;          // the run of `lazy repro evidence` whose record stands for it
};

struct RecipeRun {
  const Recipe* recipe = nullptr;
  Conditions conditions;
  std::vector<StepRun> steps;
  std::vector<Finding> findings;  // of run_recipe: empty while steps are unfinished
  std::string command, date;
  int64_t unfinished = 0;  // steps left for other processes by `only`
};

// The values of the recorded steps, pieces of a measurement together.
Results results_of(const RecipeRun& run);
// Those of one step each; null: it is not recorded.
StepValues recorded_values(const RecipeRun& run);

// The plan, or the part of it that `only` names, with what is recorded already, nothing run. A corpus that does not
// exist yet makes every step open.
RecipeRun plan_recipe(const Recipe& recipe, const RunOptions& options);
// Error when data is missing that the scale cannot do without; Interrupted when a signal asked to stop.
RecipeRun run_recipe(const Recipe& recipe, RunOptions options);
// Findings from the steps that are recorded, nothing run; what rests on others is open. No findings where none is
// recorded.
RecipeRun judge_finished(const Recipe& recipe, const RunOptions& options);

// The prose of Perl's manual where it is installed (what `make demo` reads); empty elsewhere.
std::vector<std::string> demo_text();

}  // namespace lazy::repro
