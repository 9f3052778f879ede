#include "eval/compare/result_folder.h"

#include <algorithm>
#include <fstream>
#include <nlohmann/json.hpp>

#include <sstream>

#include "core/error.h"

namespace lazy::eval {
namespace fs = std::filesystem;
using nlohmann::json;
namespace {

constexpr std::string_view kResults = "results_", kSamples = "samples_";

std::string text_of(const json& value) { return value.is_string() ? value.get<std::string>() : value.dump(); }

SampleValue value_of(const json& value) {
  if (value.is_array()) return {value.at(0).get<double>(), value.at(1).get<double>()};
  return {value.get<double>(), 1};
}

SampleDocument document_of(const json& sample) {
  SampleDocument document;
  document.document_hash = sample.at("doc_hash").get<std::string>();
  document.question_hash = sample.at("prompt_hash").get<std::string>() + sample.at("target_hash").get<std::string>();
  for (const json& metric : sample.at("metrics")) {
    const auto name = metric.get<std::string>();
    document.metrics[name] = value_of(sample.at(name));
  }
  return document;
}

void read_samples(std::istream& lines, const std::string& source, TaskSamples& task) {
  std::string line;
  for (int64_t number = 1; std::getline(lines, line); ++number) {
    try {
      const json sample = json::parse(line);
      task.documents[sample.at("doc_id").get<int64_t>()] = document_of(sample);
    } catch (const json::exception& e) {
      fail("eval --compare", "{}:{}: expected a sample in the schema of lm-evaluation-harness, found {}", source,
           number, e.what());
    }
  }
  if (task.documents.empty()) fail("eval --compare", "{}: expected samples, found none", source);
}

// Reads the samples of a task from samples_TASK_DATE.jsonl next to results_DATE.json. The task version and the number
// of few-shot examples are read from the results file.
TaskSamples samples_of(const fs::path& results_file, const json& results, const std::string& task) {
  const std::string date = results_file.stem().string().substr(kResults.size());
  const auto stated = [&](const char* key) {
    const auto found = results.find(key);
    return found != results.end() && found->contains(task) ? text_of(found->at(task)) : "unknown";
  };
  TaskSamples samples;
  samples.file = results_file.parent_path() / (std::string(kSamples) + task + "_" + date + ".jsonl");
  samples.version = stated("versions");
  samples.shots = stated("n-shot");
  return samples;
}

}  // namespace

ResultFolder read_result_folder(const fs::path& path) {
  if (!fs::is_directory(path)) {
    fail("eval --compare", "{}: expected a folder of results, found {}", path.string(),
         fs::exists(path) ? "a file" : "nothing");
  }
  std::vector<fs::path> files;
  for (const auto& entry : fs::recursive_directory_iterator(path)) {
    const std::string name = entry.path().filename().string();
    if (entry.is_regular_file() && name.starts_with(kResults) && name.ends_with(".json")) files.push_back(entry.path());
  }
  // Dates in file names use ISO 8601, so sorting by name sorts by time.
  std::sort(files.begin(), files.end(),
            [](const fs::path& a, const fs::path& b) { return a.filename() < b.filename(); });
  ResultFolder folder{path, {}};
  for (const fs::path& file : files) {
    json results;
    try {
      results = json::parse(std::ifstream(file));
      for (const auto& [task, unused] : results.at("results").items()) {
        TaskSamples samples = samples_of(file, results, task);
        if (!fs::exists(samples.file)) continue;
        const auto before = folder.tasks.find(task);
        if (before != folder.tasks.end() && before->second.file.parent_path() != samples.file.parent_path()) {
          fail("eval --compare", "{}: expected results of one model, found task {} in {} and in {}", path.string(),
               task, before->second.file.parent_path().string(), samples.file.parent_path().string());
        }
        folder.tasks[task] = std::move(samples);
      }
    } catch (const json::exception& e) {
      fail("eval --compare", "{}: expected results in the schema of lm-evaluation-harness, found {}", file.string(),
           e.what());
    }
  }
  if (folder.tasks.empty()) {
    fail("eval --compare",
         "{}: expected results_DATE.json with samples_TASK_DATE.jsonl (written with --log-samples), found {}",
         path.string(), files.empty() ? "no results" : "no samples");
  }
  for (auto& [task, samples] : folder.tasks) {
    std::ifstream lines(samples.file);
    read_samples(lines, samples.file.string(), samples);
  }
  return folder;
}

ResultFolder as_result_folder(const std::string& model, const std::vector<TaskResult>& results) {
  ResultFolder folder{model, {}};
  for (const TaskResult& result : results) {
    if (result.samples.empty()) continue;  // tasks without samples, such as the held-out loss, cannot be compared
    TaskSamples& samples = folder.tasks[result.name];
    samples.version = json(result.version).dump();
    samples.shots = std::to_string(result.num_fewshot);
    std::istringstream lines(result.samples);
    read_samples(lines, model + ": " + result.name, samples);
  }
  return folder;
}

}  // namespace lazy::eval
