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
  std::string document_hash, question_hash;  // hash of the row; hash of prompt and target
  std::map<std::string, SampleValue> metrics;
};

struct TaskSamples {
  std::filesystem::path file;
  std::string version, shots;  // as stated in the results file
  std::map<int64_t, SampleDocument> documents;
};

struct ResultFolder {
  std::filesystem::path path;
  std::map<std::string, TaskSamples> tasks;  // tasks with samples
};

// Searches the folder recursively. If a task was run several times, the latest run is used. Throws Error if all results
// are without samples, if two folders contain results of the same task (which are therefore results of two models), or
// if a file is malformed.
ResultFolder read_result_folder(const std::filesystem::path& path);
// Returns the same structure for results in memory that have samples.
ResultFolder as_result_folder(const std::string& model, const std::vector<TaskResult>& results);

}  // namespace lazy::eval
