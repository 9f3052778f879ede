// Finds recorded results for steps of recipes. There are two sources. A record of `lazy repro evidence` contains the
// configuration, the seed and the measurements of a training. A file RECORDS/steps/NAME/record.json is a step of `lazy
// repro RECIPE` that was copied from OUTPUT/SCALE/steps.
#pragma once
#include <filesystem>
#include <map>
#include <string>
#include <vector>

#include "repro/plan.h"

namespace lazy::repro {

struct RecordedStep {
  std::string run;  // name of the record, for example "B.lazy.seed1" or "steps/lazy.repetition-0a1b2c3d4e"
  Json record;      // in the format of a step's record.json
};

// Returns the inputs that a step's record must match: the fingerprint of the corpus and the settings of the trainings.
// The first training is the step itself or the training of its model; then follow the trainings of the models that the
// same step also measures.
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
  // cache, other lengths) is only found if this step itself was recorded. The curve of validation losses of a training
  // is only available from a recorded step, because the runs of the protocol validate on different sequences. Steps on
  // a model that the user gives are never found.
  std::map<std::string, RecordedStep> steps(const std::vector<Step>& plan) const;

 private:
  std::string identity(const Step& training) const;

  std::filesystem::path corpus_, configs_;
  // Complete records of runs. The key contains everything that affects the numbers of a training except corpus and
  // device.
  std::map<std::string, RecordedStep> runs_;
  std::map<std::string, RecordedStep> steps_;  // the key contains kind, settings and trainings
};

}  // namespace lazy::repro
