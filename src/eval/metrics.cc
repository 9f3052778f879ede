#include "eval/metrics.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <numbers>

#include "core/statistics.h"
#include "eval/python.h"

namespace lazy::eval {

namespace {

bool is_accuracy(const std::string& metric) { return metric.starts_with("acc"); }

// Implements numpy.argmax: returns the first of the largest values, where NaN is larger than any number.
size_t argmax(const std::vector<double>& values) {
  size_t best = 0;
  for (size_t i = 0; i < values.size() && !std::isnan(values[best]); ++i) {
    if (std::isnan(values[i]) || values[i] > values[best]) best = i;
  }
  return best;
}

double length_of(const std::string& choice, const std::string& metric) {
  return metric == "acc_norm"    ? static_cast<double>(python_length(choice))
         : metric == "acc_bytes" ? static_cast<double>(choice.size())
                                 : 1;
}

double weighted(const Task& task, size_t metric, const std::vector<DocumentResult>& documents) {
  double likelihood = 0, units = 0;
  for (const DocumentResult& d : documents) {
    likelihood += d.values[metric];
    units += static_cast<double>(task.metrics[metric] == "word_perplexity" ? d.words : d.bytes);
  }
  return likelihood / units;
}

}  // namespace

std::vector<double> document_metrics(const Task& task, const Question& question, const std::vector<Score>& scores) {
  std::vector<double> values;
  for (const std::string& metric : task.metrics) {
    if (task.output_type != OutputType::multiple_choice) {
      values.push_back(is_accuracy(metric) ? scores[0].greedy : scores[0].log_likelihood);
      continue;
    }
    std::vector<double> likelihoods;
    for (size_t i = 0; i < scores.size(); ++i)
      likelihoods.push_back(scores[i].log_likelihood / length_of(question.choices[i], metric));
    values.push_back(static_cast<int64_t>(argmax(likelihoods)) == question.label);
  }
  return values;
}

std::vector<Metric> aggregate(const Task& task, const std::vector<DocumentResult>& documents) {
  std::vector<Metric> metrics;
  for (size_t m = 0; m < task.metrics.size(); ++m) {
    const std::string& name = task.metrics[m];
    Metric metric{name, 0, is_accuracy(name)};
    std::vector<double> values;
    for (const DocumentResult& d : documents) values.push_back(d.values[m]);
    if (is_accuracy(name)) {
      metric.value = mean_of(values);
      if (values.size() > 1) metric.standard_error = mean_stderr(values);
    } else if (name == "perplexity") {
      metric.value = std::exp(-mean_of(values));
      if (values.size() > 1) metric.standard_error = perplexity_stderr(values);
    } else {
      const double per_unit = -weighted(task, m, documents);
      metric.value = name == "bits_per_byte" ? per_unit / std::numbers::ln2 : std::exp(per_unit);
    }
    metrics.push_back(std::move(metric));
  }
  return metrics;
}

std::optional<Chance> chance_of(const Task& task, const std::vector<DocumentResult>& documents) {
  if (task.output_type != OutputType::multiple_choice || documents.empty()) return std::nullopt;
  Chance chance;
  std::map<int64_t, int64_t> labels;
  for (const DocumentResult& d : documents) {
    chance.random += 1.0 / static_cast<double>(d.choices);
    chance.majority = std::max(chance.majority, static_cast<double>(++labels[d.label]));
  }
  chance.random /= static_cast<double>(documents.size());
  chance.majority /= static_cast<double>(documents.size());
  return chance;
}

double mean_stderr(const std::vector<double>& values) {
  return std::sqrt(variance_of(values)) / std::sqrt(static_cast<double>(values.size()));
}

double perplexity_stderr(const std::vector<double>& values, int64_t resamples) {
  const int64_t chunk = std::min<int64_t>(1000, resamples), chunks = resamples / chunk;
  const auto n = static_cast<double>(values.size());
  std::vector<double> replicates(static_cast<size_t>(chunks * chunk));
#pragma omp parallel for schedule(dynamic)
  for (int64_t c = 0; c < chunks; ++c) {
    PythonRandom random(static_cast<uint64_t>(c));
    for (int64_t r = 0; r < chunk; ++r) {
      double sum = 0;
      for (size_t i = 0; i < values.size(); ++i) sum += values[static_cast<size_t>(random.random() * n)];
      replicates[static_cast<size_t>(c * chunk + r)] = std::exp(-sum / n);
    }
  }
  return std::sqrt(variance_of(replicates));
}

}  // namespace lazy::eval
