// From log-likelihoods to a document's measures, and from these to a task's.
#pragma once
#include <optional>
#include <string>
#include <vector>

#include "eval/score.h"
#include "eval/tasks/question.h"

namespace lazy::eval {

struct Metric {
  std::string name;  // "word_perplexity"
  double value = 0;
  bool higher_is_better = false;
  std::optional<double> standard_error = {};
};

// One document's values, in the order of the task's metrics. Accuracies are 0 or 1; of a perplexity it is the
// log-likelihood, which is aggregated with the question's words or bytes. Of equal choices the first is the answer;
// acc_norm divides by the choice's characters, acc_bytes by its bytes.
std::vector<double> document_metrics(const Task& task, const Question& question, const std::vector<Score>& scores);

// What a task's aggregation needs of a document.
struct DocumentMeasure {
  std::vector<double> values;
  int64_t words = 0, bytes = 0, choices = 0, label = -1;
};

// With standard errors where lm-evaluation-harness has them: the mean's of accuracies, the bootstrap's of a perplexity
// over documents; none of a perplexity per word or byte, and none of a single document.
std::vector<Metric> aggregate(const Task& task, const std::vector<DocumentMeasure>& documents);

// The accuracy of guessing (the mean of 1 / choices), and of always giving the most frequent label. Multiple choice
// alone.
struct Chance {
  double random = 0, majority = 0;
};
std::optional<Chance> chance_of(const Task& task, const std::vector<DocumentMeasure>& documents);

}  // namespace lazy::eval
