// Results in lm-evaluation-harness's schema, and the table on the terminal.
#pragma once
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

namespace lazy::eval {

struct Metric {
  std::string name;  // "word_perplexity"
  double value = 0;
  bool higher_is_better = false;
};

struct TaskResult {
  std::string name, version = "1.0";
  std::vector<Metric> metrics;
  int64_t original = 0, effective = 0;  // documents there, documents evaluated
  nlohmann::ordered_json config;        // what the task was
  double seconds = 0;
};

struct ResultInfo {
  std::string model_path, model_kind, command, device, dtype, tokenizer_fingerprint;
  int64_t parameters = 0, batch_size = 1, max_length = 0;
  bool bos = false;
  std::optional<int64_t> limit;
};

// {"results": {task: {"alias", "metric,none", "metric_stderr,none"}}, "group_subtasks", "configs", "versions", "n-shot",
//  "higher_is_better", "n-samples", "config", "date", ...}. Standard errors of perplexities are "N/A", as there.
nlohmann::ordered_json to_json(const std::vector<TaskResult>& results, const ResultInfo& info);
// The same columns as the harness prints, in Markdown.
std::string to_table(const std::vector<TaskResult>& results);

}  // namespace lazy::eval
