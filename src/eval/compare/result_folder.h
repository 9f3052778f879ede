// Results and samples read back for comparison, of this program or of lm-evaluation-harness.
#pragma once
#include <filesystem>
#include <map>
#include <string>
#include <vector>

#include "eval/results.h"

namespace lazy::eval {

// A document's contribution to a metric: an accuracy of 0 or 1, or a log-likelihood and its units (words, bytes).
struct SampleValue {
  double value = 0, units = 1;
};

struct SampleDocument {
  std::string document_hash, question_hash;  // hash of the row; hashes of prompt and target
  std::map<std::string, SampleValue> metrics;
};

struct TaskSamples {
  std::filesystem::path file;
  std::string version, shots;  // as in the results file
  std::map<int64_t, SampleDocument> documents;
};

struct ResultFolder {
  std::filesystem::path path;
  std::map<std::string, TaskSamples> tasks;  // tasks with samples
};

// Searches the folder recursively; of several runs of a task the latest is used. Error when there are no samples, when
// a task has results in two folders (so of two models), and on a malformed file, with its line.
ResultFolder read_result_folder(const std::filesystem::path& path);
// The same from results in memory that have samples.
ResultFolder as_result_folder(const std::string& model, const std::vector<TaskResult>& results);

}  // namespace lazy::eval
