// Finds recorded results for steps of recipes. There are two sources. A record of `lazy repro evidence` contains the
// configuration and seed of a training and its measurements. A file RECORDS/steps/NAME/record.json is a step of `lazy
// repro RECIPE` that was copied from OUTPUT/SCALE/steps.
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

// The inputs that a step's record must match: the settings of its trainings (its own or the trainings of its model,
// then the trainings of the models measured in the same step) and the fingerprint of the corpus.
Json recorded_inputs(const Step& step, const std::vector<Step>& plan, const std::filesystem::path& corpus);

// Recorded runs and steps with the configurations of their trainings.
class RecordedRuns {
 public:
  // Loads nothing if `records` is not a folder. If a corpus is given and exists, records of a different corpus are
  // ignored. For `configs` see train_config; the folder must outlive this object. Throws an Error for a damaged record.
  RecordedRuns(const std::filesystem::path& records, const std::filesystem::path& corpus,
               const std::filesystem::path& configs);

  // Returns the recorded results by step id. The record of a run provides: training, held-out loss, sinks, losses by
  // length, learned offsets and biases (averaged over ranges of distances). A step with different settings (a streaming
  // cache, other lengths) is only found if that step itself was recorded. The curve of validation losses of a training
  // is taken from a recorded step or is missing, because the runs of the protocol validate on different sequences.
  // Steps on a given model are never found.
  std::map<std::string, RecordedStep> steps(const std::vector<Step>& plan) const;

 private:
  std::string identity(const Step& training) const;

  std::filesystem::path corpus_, configs_;
  // Complete records of runs, keyed by everything that affects the numbers of a training except corpus and device.
  std::map<std::string, RecordedStep> runs_;
  std::map<std::string, RecordedStep> steps_;  // keyed by kind, settings and trainings
};

}  // namespace lazy::repro
