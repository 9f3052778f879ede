#include "eval/compare/compare.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <set>

#include "core/error.h"
#include "eval/tasks/task.h"

namespace lazy::eval {
namespace {

// byte_perplexity and bits_per_byte restate word_perplexity's log-likelihoods: the same test once more.
constexpr std::array kAccuracies = {"acc", "acc_norm"}, kPerplexities = {"perplexity", "word_perplexity"};

bool one_of(const auto& names, const std::string& name) {
  return std::find(names.begin(), names.end(), name) != names.end();
}

// The accuracy that a task is known by; acc of one that is not built in.
std::string headline_of(const std::string& name) {
  for (const Task& task : builtin_tasks()) {
    if (task.name == name && !task.headline.empty()) return task.headline;
  }
  return "acc";
}

void check_same_documents(const std::string& task, const ResultFolder& first, const TaskSamples& a,
                          const ResultFolder& second, const TaskSamples& b) {
  const auto differ = [&](const char* what, const std::string& x, const std::string& y) {
    if (x != y) {
      fail("eval --compare", "{}: expected the same {} in both, found {} in {} and {} in {}", task, what, x,
           first.path.string(), y, second.path.string());
    }
  };
  differ("version of the task", a.version, b.version);
  differ("number of examples in the prompt", a.shots, b.shots);
  differ("number of documents (--limit)", std::to_string(a.documents.size()), std::to_string(b.documents.size()));
  for (const auto& [number, document] : a.documents) {
    const auto found = b.documents.find(number);
    if (found == b.documents.end()) {
      fail("eval --compare", "{}: document {} of {} is not in {}", task, number, first.path.string(),
           second.path.string());
    }
    // Rows with other columns (the Hub's, a local file's) may still ask the same.
    if (document.document_hash != found->second.document_hash &&
        document.question_hash != found->second.question_hash) {
      fail("eval --compare", "{}: document {} is another one in {} than in {}: the data differ", task, number,
           first.path.string(), second.path.string());
    }
  }
}

struct Paired {
  Comparison row;
  std::vector<PairedDifference> documents;
};

// An accuracy is a mean; a perplexity exp(-mean), whose logarithm is what is compared.
Paired pair_documents(const std::string& task, const std::string& metric, const TaskSamples& a, const TaskSamples& b) {
  Paired paired;
  paired.row.task = task;
  paired.row.metric = metric;
  paired.row.documents = static_cast<int64_t>(a.documents.size());
  paired.row.logarithm = one_of(kPerplexities, metric);
  const double sign = paired.row.logarithm ? -1 : 1;
  double first = 0, second = 0, units = 0;
  for (const auto& [number, document] : a.documents) {
    const SampleValue& x = document.metrics.at(metric);
    const auto other = b.documents.at(number).metrics.find(metric);
    if (other == b.documents.at(number).metrics.end())
      fail("eval --compare", "{}:{}: expected {}, found none", b.file.string(), number + 1, metric);
    paired.documents.push_back({sign * (other->second.value - x.value), x.units});
    first += sign * x.value;
    second += sign * other->second.value;
    units += x.units;
  }
  paired.row.first = paired.row.logarithm ? std::exp(first / units) : first / units;
  paired.row.second = paired.row.logarithm ? std::exp(second / units) : second / units;
  return paired;
}

void judge(Comparison& row, const Groups& groups, const CompareOptions& options) {
  row.difference = estimate(groups);
  row.interval = paired_bootstrap(groups, options.confidence, options.resamples, options.seed);
  row.test = paired_t_test(groups);
}

}  // namespace

ModelComparison compare(const ResultFolder& first, const ResultFolder& second, const CompareOptions& options) {
  ModelComparison result{first.path.string(), second.path.string(), {}, {}};
  Groups averaged;
  Comparison average{.task = "average", .metric = "accuracy"};
  for (const auto& [task, a] : first.tasks) {
    const auto found = second.tasks.find(task);
    if (found == second.tasks.end()) {
      result.left_out.push_back(task);
      continue;
    }
    const TaskSamples& b = found->second;
    check_same_documents(task, first, a, second, b);
    const auto& metrics = a.documents.begin()->second.metrics;
    const std::string headline = headline_of(task);
    for (const auto& [metric, unused] : metrics) {
      if (!one_of(kAccuracies, metric) && !one_of(kPerplexities, metric)) continue;
      Paired paired = pair_documents(task, metric, a, b);
      judge(paired.row, {paired.documents}, options);
      result.rows.push_back(paired.row);
      if (metric != headline) continue;
      average.first += paired.row.first;
      average.second += paired.row.second;
      average.documents += paired.row.documents;
      averaged.push_back(std::move(paired.documents));
    }
  }
  for (const auto& [task, unused] : second.tasks) {
    if (!first.tasks.contains(task)) result.left_out.push_back(task);
  }
  if (result.rows.empty())
    fail("eval --compare", "{} and {} have samples of no task in common", result.first, result.second);
  if (averaged.size() > 1) {
    average.first /= static_cast<double>(averaged.size());
    average.second /= static_cast<double>(averaged.size());
    judge(average, averaged, options);
    result.rows.push_back(average);
  }
  return result;
}

std::vector<ModelComparison> compare_all(const std::vector<ResultFolder>& folders, const CompareOptions& options) {
  std::vector<ModelComparison> comparisons;
  for (size_t i = 1; i < folders.size(); ++i) comparisons.push_back(compare(folders.front(), folders[i], options));
  return comparisons;
}

}  // namespace lazy::eval
