// A folder of results and samples, ours or lm-evaluation-harness's, read back for comparison.
#pragma once
#include <filesystem>
#include <map>
#include <string>
#include <vector>

#include "eval/results.h"

namespace lazy::eval {

// A document's contribution to a metric: an accuracy of 0 or 1, or a log-likelihood with the units it is divided by.
struct SampleValue {
  double value = 0, units = 1;
};

struct SampleDocument {
  std::string document_hash, question_hash;  // of the row; of prompt and target
  std::map<std::string, SampleValue> metrics;
};

struct TaskSamples {
  std::filesystem::path file;
  std::string version, shots;  // as the results file states them
  std::map<int64_t, SampleDocument> documents;
};

struct ResultFolder {
  std::filesystem::path path;
  std::map<std::string, TaskSamples> tasks;  // those with samples
};

// Searches the folder and what lies below it; of several runs of a task the latest counts. Error when there are no
// samples, when a task has results in two folders (of two models, then), or on a malformed file, with its line.
ResultFolder read_result_folder(const std::filesystem::path& path);
// The same of results in memory, evaluated with samples.
ResultFolder as_result_folder(const std::string& model, const std::vector<TaskResult>& results);

}  // namespace lazy::eval
