// `lazy eval --compare`: the difference between models evaluated on the same documents, with its interval and p-value.
#pragma once
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "eval/compare/result_folder.h"
#include "eval/compare/statistics.h"

namespace lazy::eval {

struct CompareOptions {
  double confidence = 0.95;
  int64_t resamples = 10000;
  uint64_t seed = 42;
};

struct Comparison {
  std::string task, metric;
  int64_t documents = 0;
  bool logarithm = false;        // of perplexities, whose difference is that of their logarithms
  double first = 0, second = 0;  // the metric of each
  double difference = 0;         // second - first
  Interval interval;
  TTest test;
  bool significant() const { return test.p < 0.05; }
};

struct ModelComparison {
  std::string first, second;
  std::vector<Comparison>
      rows;  // accuracies and perplexities; "average" last, where two or more tasks have an accuracy
  std::vector<std::string> left_out;  // tasks that only one of them has
};

// Documents are paired by their number; error unless both have the same ones of the same version of a task. The average
// is that of every task's headline accuracy, as in the paper's Table 1; acc of a task that is not built in.
ModelComparison compare(const ResultFolder& first, const ResultFolder& second, const CompareOptions& options = {});

// Each of the others with the first.
std::vector<ModelComparison> compare_all(const std::vector<ResultFolder>& folders, const CompareOptions& options = {});

nlohmann::ordered_json to_json(const std::vector<ModelComparison>& comparisons, const CompareOptions& options);
std::string to_table(const std::vector<ModelComparison>& comparisons, const CompareOptions& options);

}  // namespace lazy::eval
