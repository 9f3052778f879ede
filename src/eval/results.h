// Results and per-document samples in lm-evaluation-harness's schema, their files, and the table on the terminal.
#pragma once
#include <filesystem>
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
  int64_t original = 0, effective = 0, num_fewshot = 0;  // documents available, documents evaluated, examples a prompt
  nlohmann::ordered_json config;                         // the task's definition and options
  double seconds = 0;
  std::optional<Chance> chance = {};
  std::string headline = {};   // the accuracy that counts in the average over tasks
  std::string samples = {};    // JSON lines, one a document; empty unless samples are logged
  std::string task_hash = {};  // hash of the samples' hashes
};

struct ResultInfo {
  std::string model_path, model_kind, command, device, dtype, tokenizer_fingerprint;
  int64_t parameters = 0, batch_size = 1, max_length = 0;
  bool bos = false, bos_every_window = false;
  std::optional<double> limit;
  uint64_t fewshot_seed = 1234;
  std::vector<std::string> unfinished = {};  // tasks that were requested and have no results yet
};

// {"results": {task: {"alias", "metric,none", "metric_stderr,none"}}, "group_subtasks", "configs", "versions",
// "n-shot", "higher_is_better", "n-samples", "config", "date", ...}. Undefined standard errors are "N/A".
// Three keys are additions to the harness's schema. "unfinished" lists the tasks without results, while the evaluation
// runs and after it was interrupted; complete results lack it. "chance" has each multiple-choice task's accuracies
// rescaled as (accuracy - chance) / (1 - chance), against guessing and against the most frequent label. "average" is
// the mean of the tasks' headline accuracies; it needs eight tasks or more.
nlohmann::ordered_json to_json(const std::vector<TaskResult>& results, const ResultInfo& info);
// The columns that the harness prints, in Markdown; then the rescaled accuracies and the average.
std::string to_table(const std::vector<TaskResult>& results);

// One line of samples_<task>_<date>.jsonl: doc_id, doc, target, arguments, resps and filtered_resps (log-likelihood and
// greedy flag of each request, as strings), filter, metrics, doc_hash, prompt_hash, target_hash, and the metrics'
// values.
Json sample_record(const Task& task, int64_t doc_id, const Row& row, const Question& question,
                   const std::vector<Score>& scores, const std::vector<double>& values);

// A model's path as a folder name, by the harness's rule.
std::string sanitized_model_name(const std::string& name);
// The files of --output. NAME.json is that file; anything else is a folder that receives results_<date>.json. Until the
// last task has ended, results are in NAME.partial.json or results_<date>.partial.json, so that a file of the final
// name is complete. Samples are written next to the results as samples_<task>_<date>.jsonl. The date is that of the
// constructor.
class ResultFiles {
 public:
  // Error when NAME.json is a folder, or a file is in the folder's place.
  explicit ResultFiles(std::filesystem::path output);
  // Writes a task's samples, if it has any. Call it before write(), so that results always have all of their samples.
  void write_samples(const TaskResult& task) const;
  void write_partial(const std::string& json) const;
  void write(const std::string& json) const;  // and removes the partial results
  const std::filesystem::path& path() const { return file_; }
  const std::filesystem::path& partial_path() const { return partial_; }

 private:
  void create_folder() const;
  std::filesystem::path folder_, file_, partial_;
  std::string date_;
};

}  // namespace lazy::eval
