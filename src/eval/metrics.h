// Computes the metrics of a document from log-likelihoods, and the metrics of a task with standard errors from the
// metrics of its documents.
#pragma once
#include <optional>
#include <string>
#include <vector>

#include "eval/score.h"
#include "eval/tasks/prompt.h"

namespace lazy::eval {

struct Metric {
  std::string name;  // name of the metric, for example "word_perplexity"
  double value = 0;
  bool higher_is_better = false;
  std::optional<double> standard_error = {};
};

// Returns the values of one document in the order of the task's metrics. Accuracies are 0 or 1. The value of a
// perplexity is the log-likelihood, which is later aggregated with the number of words or bytes of the document. The
// predicted choice is the choice with the largest likelihood, or the first of several such choices. acc_norm divides by
// the number of characters of the choice, acc_bytes by its number of bytes.
std::vector<double> document_metrics(const Task& task, const Question& question, const std::vector<Score>& scores);

// The contribution of a document to the metrics of its task.
struct DocumentResult {
  std::vector<double> values;
  int64_t words = 0, bytes = 0, choices = 0, label = -1;
};

// Aggregates the documents of a task. Standard errors follow lm-evaluation-harness: the standard error of the mean for
// accuracies, the bootstrap for a perplexity over documents, and none for a perplexity per word or byte or for a single
// document.
std::vector<Metric> aggregate(const Task& task, const std::vector<DocumentResult>& documents);

// Baselines for multiple choice. random: accuracy of guessing, the mean of 1 / (number of choices). majority: accuracy
// of always selecting the most frequent label. Other output types have no baselines.
struct Chance {
  double random = 0, majority = 0;
};
std::optional<Chance> chance_of(const Task& task, const std::vector<DocumentResult>& documents);

// Returns the standard error of the mean: the sample standard deviation divided by sqrt(n). Requires at least two
// values.
double mean_stderr(const std::vector<double>& values);
// Returns the standard error of exp(-mean): the standard deviation over resamples with replacement. As in
// lm-evaluation-harness, 1,000 resamples are drawn from each of Python's random.Random(0), Random(1), ... The result
// does not depend on the number of threads.
double perplexity_stderr(const std::vector<double>& log_likelihoods, int64_t resamples = 100'000);

}  // namespace lazy::eval
