// From log-likelihoods to the metrics of a document, and from these to a task's metrics with standard errors.
#pragma once
#include <optional>
#include <string>
#include <vector>

#include "eval/score.h"
#include "eval/tasks/prompt.h"

namespace lazy::eval {

struct Metric {
  std::string name;  // "word_perplexity"
  double value = 0;
  bool higher_is_better = false;
  std::optional<double> standard_error = {};
};

// One document's values, in the order of the task's metrics. Accuracies are 0 or 1; the value of a perplexity is the
// log-likelihood, which is aggregated with the document's words or bytes. The predicted choice is the one of the
// largest likelihood (of equals, the first); acc_norm divides by the choice's characters, acc_bytes by its bytes.
std::vector<double> document_metrics(const Task& task, const Question& question, const std::vector<Score>& scores);

// A document's contribution to the aggregates of its task.
struct DocumentResult {
  std::vector<double> values;
  int64_t words = 0, bytes = 0, choices = 0, label = -1;
};

// Standard errors as lm-evaluation-harness has them: of the mean for accuracies, by the bootstrap for a perplexity over
// documents, none for a perplexity per word or byte, and none for a single document.
std::vector<Metric> aggregate(const Task& task, const std::vector<DocumentResult>& documents);

// Baselines of multiple choice: the accuracy of guessing (the mean of 1 / choices) and of always giving the most
// frequent label. None for other output types.
struct Chance {
  double random = 0, majority = 0;
};
std::optional<Chance> chance_of(const Task& task, const std::vector<DocumentResult>& documents);

// The sample standard deviation over sqrt(n); at least two values.
double mean_stderr(const std::vector<double>& values);
// Of exp(-mean): the standard deviation over resamples with replacement, 1,000 from each of Python's random.Random(0),
// Random(1), ..., as lm-evaluation-harness draws them. The result does not depend on the number of threads.
double perplexity_stderr(const std::vector<double>& log_likelihoods, int64_t resamples = 100'000);

}  // namespace lazy::eval
