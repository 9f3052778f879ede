// Results in lm-evaluation-harness's schema, and the table on the terminal.
#pragma once
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "eval/metrics.h"

namespace lazy::eval {

struct TaskResult {
  std::string name;
  double version = 1;
  std::vector<Metric> metrics;
  int64_t original = 0, effective = 0, num_fewshot = 0;  // documents there, documents evaluated, examples before each
  nlohmann::ordered_json config;                         // what the task was
  double seconds = 0;
  std::optional<Chance> chance = {};
  std::string headline = {};   // the accuracy that counts in the average
  std::string samples = {};    // a JSON line a document, where they were asked for
  std::string task_hash = {};  // of the samples' hashes
};

struct ResultInfo {
  std::string model_path, model_kind, command, device, dtype, tokenizer_fingerprint;
  int64_t parameters = 0, batch_size = 1, max_length = 0;
  bool bos = false;
  std::optional<double> limit;
  uint64_t fewshot_seed = 1234;
};

// {"results": {task: {"alias", "metric,none", "metric_stderr,none"}}, "group_subtasks", "configs", "versions",
// "n-shot", "higher_is_better", "n-samples", "config", "date", ...}. Standard errors that are not defined are "N/A", as
// there. Two keys are ours: "chance" has each multiple-choice task's accuracies as (accuracy - chance) / (1 - chance),
// by guessing and by the most frequent label (decision A17); "average" the mean of the tasks' headline accuracies where
// eight or more are there.
nlohmann::ordered_json to_json(const std::vector<TaskResult>& results, const ResultInfo& info);
// A model's path as the name of a folder, by the harness's rule.
std::string sanitized_model_name(const std::string& name);
// The same columns as the harness prints, in Markdown; then the rescaled accuracies and the average.
std::string to_table(const std::vector<TaskResult>& results);

}  // namespace lazy::eval
