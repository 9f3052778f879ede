// Compares models by their results on the same documents and formats the comparison.
#include "eval/compare/compare.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <set>

#include "core/error.h"
#include "core/text.h"
#include "eval/tasks/task.h"

namespace lazy::eval {

namespace {

// The metrics that are compared. byte_perplexity and bits_per_byte are left out: they are computed from the same
// log-likelihoods as word_perplexity, so their tests would have identical results.
constexpr std::array kAccuracies = {"acc", "acc_norm"}, kPerplexities = {"perplexity", "word_perplexity"};

bool one_of(const auto& names, const std::string& name) {
  return std::find(names.begin(), names.end(), name) != names.end();
}

// Returns the name of the accuracy with which a task contributes to the average: Task::headline, or "acc" for a task
// that is not built in.
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
      fail("eval --compare", "{}: expected the same {} in both folders, found {} in {} and {} in {}", task, what, x,
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
    // The hashes of two rows can differ although the question is the same: for example, a row from the Hugging Face Hub
    // and a row from a local file can have different columns. In this case the hashes of the questions are equal.
    if (document.document_hash != found->second.document_hash &&
        document.question_hash != found->second.question_hash) {
      fail("eval --compare", "{}: document {} differs between {} and {}: the runs used different data", task, number,
           first.path.string(), second.path.string());
    }
  }
}

struct Paired {
  Comparison row;
  std::vector<PairedDifference> documents;
};

// Pairs the values of a metric by document. An accuracy is the mean of the documents' values. A perplexity is
// exp(-mean) of the documents' log-likelihoods, so its logarithm is compared.
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

void add_test(Comparison& row, const PairedBenchmarks& benchmarks, const CompareOptions& options) {
  row.difference = mean_difference(benchmarks);
  row.interval = paired_bootstrap(benchmarks, options.confidence, options.resamples, options.seed);
  row.test = paired_t_test(benchmarks);
}

}  // namespace

ModelComparison compare(const ResultFolder& first, const ResultFolder& second, const CompareOptions& options) {
  ModelComparison result{first.path.string(), second.path.string(), {}, {}};
  PairedBenchmarks averaged;
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
      add_test(paired.row, {paired.documents}, options);
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
    fail("eval --compare", "{} and {} have no task with samples in common", result.first, result.second);
  if (averaged.size() > 1) {
    average.first /= static_cast<double>(averaged.size());
    average.second /= static_cast<double>(averaged.size());
    add_test(average, averaged, options);
    result.rows.push_back(average);
  }
  return result;
}

std::vector<ModelComparison> compare_all(const std::vector<ResultFolder>& folders, const CompareOptions& options) {
  std::vector<ModelComparison> comparisons;
  for (size_t i = 1; i < folders.size(); ++i) comparisons.push_back(compare(folders.front(), folders[i], options));
  return comparisons;
}

namespace {

std::string p_value(double p) {
  if (std::isnan(p)) return "N/A";
  return p < 1e-4 ? fmt::format("{:.1e}", p) : fmt::format("{:.4f}", p);
}

std::string value(double v) { return fmt::format("{:.4f}", v); }

std::vector<std::string> cells(const Comparison& row) {
  return {row.task,
          row.metric,
          std::to_string(row.documents),
          value(row.first),
          value(row.second),
          fmt::format("{:+.4f}", row.difference),
          fmt::format("[{:+.4f}, {:+.4f}]", row.interval.low, row.interval.high),
          p_value(row.test.p),
          row.significant() ? "*" : ""};
}

nlohmann::ordered_json number(double v) {
  return std::isfinite(v) ? nlohmann::ordered_json(v) : nlohmann::ordered_json(nullptr);
}

}  // namespace

std::string to_table(const std::vector<ModelComparison>& comparisons, const CompareOptions& options) {
  std::string out;
  bool logarithms = false;
  for (const ModelComparison& comparison : comparisons) {
    std::vector<std::vector<std::string>> table = {{"Task", "Metric", "n", "first", "second", "difference",
                                                    fmt::format("{:g} % interval", 100 * options.confidence), "p", ""}};
    for (const Comparison& row : comparison.rows) {
      table.push_back(cells(row));
      logarithms = logarithms || row.logarithm;
    }
    out += fmt::format("{}first:  {}\nsecond: {}\n", out.empty() ? "" : "\n", comparison.first, comparison.second);
    out += markdown_table(table, "llrrrrrrl");
    for (const std::string& task : comparison.left_out)
      out += fmt::format("{}: only in one of the two models, not compared\n", task);
  }
  if (logarithms) out += "For perplexities the table shows the difference of the logarithms.\n";
  return out + fmt::format(
                   "Difference: second - first. Interval: paired bootstrap over documents, {} resamples, seed {}. "
                   "p: two-sided paired t-test; * p < 0.05.\n",
                   options.resamples, options.seed);
}

nlohmann::ordered_json to_json(const std::vector<ModelComparison>& comparisons, const CompareOptions& options) {
  nlohmann::ordered_json out = {
      {"confidence", options.confidence}, {"resamples", options.resamples}, {"seed", options.seed}};
  out["comparisons"] = nlohmann::ordered_json::array();
  for (const ModelComparison& comparison : comparisons) {
    nlohmann::ordered_json entry = {
        {"first", comparison.first}, {"second", comparison.second}, {"left_out", comparison.left_out}};
    for (const Comparison& row : comparison.rows) {
      entry["results"][row.task][row.metric] = {{"documents", row.documents},
                                                {"first", number(row.first)},
                                                {"second", number(row.second)},
                                                {"difference", number(row.difference)},
                                                {"difference_of_logarithms", row.logarithm},
                                                {"interval", {number(row.interval.low), number(row.interval.high)}},
                                                {"t", number(row.test.t)},
                                                {"degrees_of_freedom", number(row.test.degrees)},
                                                {"p", number(row.test.p)},
                                                {"significant", row.significant()}};
    }
    out["comparisons"].push_back(std::move(entry));
  }
  return out;
}

}  // namespace lazy::eval
