// Steps of recipes whose outcome the records of `lazy repro evidence` hold: a training with the configuration and seed
// of a recorded run, and what was measured of it.
#pragma once
#include <filesystem>
#include <map>
#include <string>
#include <vector>

#include "repro/plan.h"

namespace lazy::repro {

struct RecordedStep {
  std::string run;             // "B.lazy.seed1"
  std::filesystem::path file;  // of the record
  Json record;                 // as record.json of a step
};

// The runs that have a record, with the configurations of their trainings.
class RecordedRuns {
 public:
  // None where `records` is no folder. A corpus that is given and exists must be the records' own: others are left out.
  // `configs`: see train_config; it must outlive this. Error for a damaged record.
  RecordedRuns(const std::filesystem::path& records, const std::filesystem::path& corpus,
               const std::filesystem::path& configs);

  // By the steps' ids. Of a record serve: training, held-out loss, sinks, losses by length, learned offsets and biases
  // (of a range of distances its mean). A step with other settings (a cache, other lengths) is not served.
  std::map<std::string, RecordedStep> steps(const std::vector<Step>& plan) const;

 private:
  struct Run {
    std::string id;
    std::filesystem::path file;
    Json record;
  };
  std::filesystem::path corpus_, configs_;
  std::map<std::string, Run> runs_;  // by everything that decides a training's numbers but corpus and device
};

}  // namespace lazy::repro
