// Steps of recipes whose outcome is recorded. The records of `lazy repro evidence` hold a training with the
// configuration and seed of a run, and what was measured of it. RECORDS/steps/NAME/record.json are steps of `lazy repro
// RECIPE`, copied from OUTPUT/SCALE/steps.
#pragma once
#include <filesystem>
#include <map>
#include <string>
#include <vector>

#include "repro/plan.h"

namespace lazy::repro {

struct RecordedStep {
  std::string run;  // "B.lazy.seed1", "steps/lazy.repetition-0a1b2c3d4e"
  Json record;      // as record.json of a step
};

// What the record of a step says of its inputs: the settings of its trainings (its own or its model's, then those of
// the models beside) and the corpus' fingerprint.
Json recorded_inputs(const Step& step, const std::vector<Step>& plan, const std::filesystem::path& corpus);

// Recorded runs and steps, with the configurations of their trainings.
class RecordedRuns {
 public:
  // None where `records` is no folder. A corpus that is given and exists must be the records' own: others are left out.
  // `configs`: see train_config; it must outlive this. Error for a damaged record.
  RecordedRuns(const std::filesystem::path& records, const std::filesystem::path& corpus,
               const std::filesystem::path& configs);

  // By the steps' ids. Of a run serve: training, held-out loss, sinks, losses by length, learned offsets and biases (of
  // a range of distances its mean). A step with other settings (a cache, other lengths) is not served, unless such a
  // step is recorded. A training's curve of validation losses is a recorded step's, or missing: the runs have others.
  // A step of a given model is not served.
  std::map<std::string, RecordedStep> steps(const std::vector<Step>& plan) const;

 private:
  std::string identity(const Step& training) const;

  std::filesystem::path corpus_, configs_;
  // Whole records of runs, by everything that decides a training's numbers but corpus and device.
  std::map<std::string, RecordedStep> runs_;
  std::map<std::string, RecordedStep> steps_;  // by kind, settings and trainings
};

}  // namespace lazy::repro
