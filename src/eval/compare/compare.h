// `lazy eval --compare`: differences between models evaluated on the same documents, with intervals and p-values.
#pragma once
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "eval/compare/paired_test.h"
#include "eval/compare/result_folder.h"

namespace lazy::eval {

struct CompareOptions {
  double confidence = 0.95;
  int64_t resamples = 10000;
  uint64_t seed = 42;
};

struct Comparison {
  std::string task, metric;
  int64_t documents = 0;
  bool logarithm = false;        // whether `difference` is the difference of the logarithms (perplexities)
  double first = 0, second = 0;  // metric of the first and the second model
  double difference = 0;         // value of the second model minus value of the first model
  ConfidenceInterval interval;   // confidence interval of the difference
  TTest test;
  bool significant() const { return test.p < 0.05; }
};

struct ModelComparison {
  std::string first, second;
  std::vector<Comparison>
      rows;  // accuracies and perplexities; the last row is "average" if two or more tasks have an accuracy
  std::vector<std::string> left_out;  // tasks that only one of the two models has
};

// Compares two models. Documents are paired by their number. Throws Error unless both models have the same documents of
// the same task version. The average is over one accuracy per task (Task::headline), as in Table 1 of the paper; tasks
// that are not built in contribute "acc".
ModelComparison compare(const ResultFolder& first, const ResultFolder& second, const CompareOptions& options = {});

// Compares each model except the first one with the first one.
std::vector<ModelComparison> compare_all(const std::vector<ResultFolder>& folders, const CompareOptions& options = {});

nlohmann::ordered_json to_json(const std::vector<ModelComparison>& comparisons, const CompareOptions& options);
std::string to_table(const std::vector<ModelComparison>& comparisons, const CompareOptions& options);

}  // namespace lazy::eval
