// Reads results and samples of this program or of lm-evaluation-harness for comparison.
#pragma once
#include <filesystem>
#include <map>
#include <string>
#include <vector>

#include "eval/results.h"

namespace lazy::eval {

// The contribution of a document to a metric: an accuracy of 0 or 1, or a log-likelihood and its number of units (words
// or bytes).
struct SampleValue {
  double value = 0, units = 1;
};

struct SampleDocument {
  std::string document_hash, question_hash;  // document_hash: hash of the row; question_hash: hash of prompt and target
  std::map<std::string, SampleValue> metrics;
};

struct TaskSamples {
  std::filesystem::path file;
  std::string version, shots;  // task version and number of few-shot examples, as written in the results file
  std::map<int64_t, SampleDocument> documents;
};

struct ResultFolder {
  std::filesystem::path path;
  std::map<std::string, TaskSamples> tasks;  // samples by task; tasks without samples are absent
};

// Reads the results in a folder and its subfolders. If a task was run several times, the latest run is used. Throws
// Error if no result has samples, if a file is malformed, or if two subfolders contain results of the same task,
// because these are results of two different models.
ResultFolder read_result_folder(const std::filesystem::path& path);
// Converts results in memory to a ResultFolder. Only results with samples are included.
ResultFolder as_result_folder(const std::string& model, const std::vector<TaskResult>& results);

}  // namespace lazy::eval
