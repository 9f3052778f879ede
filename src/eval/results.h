// Results and per-document samples in the schema of lm-evaluation-harness, their files, and the terminal table.
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
  // original: number of documents in the files; effective: number of evaluated documents; num_fewshot: number of
  // examples per prompt
  int64_t original = 0, effective = 0, num_fewshot = 0;
  nlohmann::ordered_json config;  // definition and options of the task
  double seconds = 0;
  std::optional<Chance> chance = {};
  std::string headline = {};   // name of the accuracy that is included in the average over tasks
  std::string samples = {};    // JSON lines, one per document; empty unless samples are logged
  std::string task_hash = {};  // hash of the hashes of all samples
};

struct ResultInfo {
  std::string model_path, model_kind, command, device, dtype, tokenizer_fingerprint;
  int64_t parameters = 0, batch_size = 1, max_length = 0;
  bool bos = false, bos_every_window = false;
  std::optional<double> limit;
  uint64_t fewshot_seed = 1234;
  std::vector<std::string> unfinished = {};  // requested tasks that have no results yet
};

// Returns {"results": {task: {"alias", "metric,none", "metric_stderr,none"}}, "group_subtasks", "configs", "versions",
// "n-shot", "higher_is_better", "n-samples", "config", "date", ...}. Undefined standard errors are "N/A".
//
// Three keys extend the schema of lm-evaluation-harness. "unfinished" lists the tasks without results; it exists while
// the evaluation runs and after it was interrupted, but not in complete results. "chance" contains the accuracies of
// each multiple-choice task rescaled as (accuracy - chance) / (1 - chance), where chance is the accuracy of guessing or
// of always selecting the most frequent label. "average" is the mean of one accuracy per task (Task::headline) and
// requires at least eight tasks.
nlohmann::ordered_json to_json(const std::vector<TaskResult>& results, const ResultInfo& info);
// Formats the columns that lm-evaluation-harness prints as Markdown, followed by the rescaled accuracies and the
// average.
std::string to_table(const std::vector<TaskResult>& results);

// Returns one line of samples_<task>_<date>.jsonl: doc_id, doc, target, arguments, resps and filtered_resps
// (log-likelihood and greedy flag of each request, as strings), filter, metrics, doc_hash, prompt_hash, target_hash,
// and the values of the metrics.
Json sample_record(const Task& task, int64_t doc_id, const TaskDocument& row, const Question& question,
                   const std::vector<Score>& scores, const std::vector<double>& values);

// Converts the path of a model to a folder name by the rule of lm-evaluation-harness.
std::string sanitized_model_name(const std::string& name);
// Manages the files of --output. NAME.json selects this file; any other value is a folder that receives
// results_<date>.json. Until the last task has finished, results are written to NAME.partial.json or
// results_<date>.partial.json, so that a file with the final name is always complete. Samples are written to
// samples_<task>_<date>.jsonl in the same folder. The date is the time of construction.
class ResultFiles {
 public:
  // Throws Error if NAME.json is a folder, or if a file exists where the folder should be.
  explicit ResultFiles(std::filesystem::path output);
  // Writes the samples of a task if it has any. Must be called before write(), so that a results file never exists
  // without its samples.
  void write_samples(const TaskResult& task) const;
  void write_partial(const std::string& json) const;
  void write(const std::string& json) const;  // writes the final results and removes the partial results
  const std::filesystem::path& path() const { return file_; }
  const std::filesystem::path& partial_path() const { return partial_; }

 private:
  void create_folder() const;
  std::filesystem::path folder_, file_, partial_;
  std::string date_;
};

}  // namespace lazy::eval
