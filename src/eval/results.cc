#include "eval/results.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cmath>

#include "core/text.h"

namespace lazy::eval {
using nlohmann::ordered_json;
namespace {

// JSON has no NaN and no infinity: null says that there is no number.
ordered_json number(double value) { return std::isfinite(value) ? ordered_json(value) : ordered_json(); }

double rescaled(double accuracy, double chance) { return (accuracy - chance) / (1 - chance); }

// Where always giving one label is right every time, nothing can be better than it.
std::string rescaled_text(double accuracy, double chance) {
  return chance < 1 ? fmt::format("{:.4f}", rescaled(accuracy, chance)) : "N/A";
}

bool is_accuracy(const Metric& metric) { return metric.name.starts_with("acc"); }

ordered_json chance_json(const TaskResult& task) {
  ordered_json out = {{"random", number(task.chance->random)}, {"majority", number(task.chance->majority)}};
  for (const Metric& metric : task.metrics) {
    if (!is_accuracy(metric)) continue;
    out[metric.name] = {{"rescaled_random", number(rescaled(metric.value, task.chance->random))},
                        {"rescaled_majority", number(rescaled(metric.value, task.chance->majority))}};
  }
  return out;
}

// The mean over tasks of the accuracy that each is known by; the paper's average is that of eight.
struct Average {
  double accuracy = 0;
  ordered_json metrics = ordered_json::object();
};

std::optional<Average> average_of(const std::vector<TaskResult>& results) {
  Average average;
  for (const TaskResult& task : results) {
    for (const Metric& metric : task.metrics) {
      if (task.headline != metric.name) continue;
      average.accuracy += metric.value;
      average.metrics[task.name] = metric.name;
    }
  }
  if (average.metrics.size() < 8) return std::nullopt;
  average.accuracy /= static_cast<double>(average.metrics.size());
  return average;
}

std::vector<const TaskResult*> by_name(const std::vector<TaskResult>& results) {
  std::vector<const TaskResult*> sorted;
  for (const TaskResult& task : results) sorted.push_back(&task);
  std::stable_sort(sorted.begin(), sorted.end(),
                   [](const TaskResult* a, const TaskResult* b) { return a->name < b->name; });
  return sorted;
}

}  // namespace

ordered_json to_json(const std::vector<TaskResult>& results, const ResultInfo& info) {
  ordered_json out;
  ordered_json chance = ordered_json::object(), hashes = ordered_json::object();
  double seconds = 0;
  for (const char* key :
       {"results", "group_subtasks", "configs", "versions", "n-shot", "higher_is_better", "n-samples"}) {
    out[key] = ordered_json::object();
  }
  for (const TaskResult& task : results) {
    ordered_json& values = out["results"][task.name];
    values["name"] = task.name;
    values["alias"] = task.name;
    values["sample_len"] = task.effective;
    for (const Metric& metric : task.metrics) {
      values[metric.name + ",none"] = number(metric.value);
      values[metric.name + "_stderr,none"] =
          metric.standard_error ? number(*metric.standard_error) : ordered_json("N/A");
      out["higher_is_better"][task.name][metric.name] = metric.higher_is_better;
    }
    out["group_subtasks"][task.name] = ordered_json::array();
    out["configs"][task.name] = task.config;
    out["versions"][task.name] = task.version;
    out["n-shot"][task.name] = task.num_fewshot;
    out["n-samples"][task.name] = {{"original", task.original}, {"effective", task.effective}};
    if (task.chance) chance[task.name] = chance_json(task);
    if (!task.task_hash.empty()) hashes[task.name] = task.task_hash;
    seconds += task.seconds;
  }
  if (!chance.empty()) out["chance"] = std::move(chance);
  if (const auto average = average_of(results))
    out["average"] = {{"acc", number(average->accuracy)}, {"metrics", average->metrics}};
  out["config"] = {
      {"model", "lazy"},
      {"model_args", {{"pretrained", info.model_path}, {"kind", info.model_kind}, {"add_bos_token", info.bos}}},
      {"model_num_parameters", info.parameters},
      {"model_dtype", info.dtype},
      {"batch_size", info.batch_size > 0 ? std::to_string(info.batch_size) : "auto"},
      {"batch_sizes", ordered_json::array()},
      {"device", info.device},
      {"limit", info.limit ? ordered_json(*info.limit) : ordered_json()},
      {"bootstrap_iters", 100000},
      {"fewshot_seed", info.fewshot_seed},
      {"command", info.command}};
  out["date"] = std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();
  out["lazy_version"] = LAZY_VERSION;
  out["max_length"] = info.max_length;
  out["model_source"] = "lazy";
  out["model_name"] = info.model_path;
  out["model_name_sanitized"] = sanitized_model_name(info.model_path);
  out["task_hashes"] = std::move(hashes);
  out["tokenizer_fingerprint"] = info.tokenizer_fingerprint;
  out["total_evaluation_time_seconds"] = fmt::format("{:.3f}", seconds);
  return out;
}

std::string sanitized_model_name(const std::string& name) {
  std::string out;
  bool odd_before = false;
  for (const char c : name) {
    const bool odd = std::string_view("\"<>:/|\\?*[]").find(c) != std::string_view::npos;
    if (!odd)
      out += c;
    else if (!odd_before)
      out += "__";
    odd_before = odd;
  }
  return out;
}

std::string to_table(const std::vector<TaskResult>& results) {
  using Rows = std::vector<std::vector<std::string>>;
  Rows rows = {{"Tasks", "Version", "Filter", "n-shot", "Metric", "", "Value", "", "Stderr"}};
  Rows above = {{"Tasks", "Metric", "Value", "Random", "Rescaled", "Majority", "Rescaled"}};
  for (const TaskResult* task : by_name(results)) {
    std::vector<Metric> metrics = task->metrics;
    std::sort(metrics.begin(), metrics.end(), [](const Metric& a, const Metric& b) { return a.name < b.name; });
    for (size_t m = 0; m < metrics.size(); ++m) {
      const Metric& metric = metrics[m];
      rows.push_back({m ? "" : task->name, m ? "" : fmt::format("{}", task->version), "none",
                      std::to_string(task->num_fewshot), metric.name, metric.higher_is_better ? "↑" : "↓",
                      fmt::format("{:.4f}", metric.value), "±",
                      metric.standard_error ? fmt::format("{:.4f}", *metric.standard_error) : "N/A"});
      if (!task->chance || !is_accuracy(metric)) continue;
      const auto [random, majority] = *task->chance;
      above.push_back({task->name, metric.name, fmt::format("{:.4f}", metric.value), fmt::format("{:.4f}", random),
                       rescaled_text(metric.value, random), fmt::format("{:.4f}", majority),
                       rescaled_text(metric.value, majority)});
    }
  }
  std::string out = markdown_table(rows, "lrlrllrlr", /*header_left=*/true);
  if (above.size() > 1) {
    out += "\nRescaled: (accuracy - chance) / (1 - chance)\n" + markdown_table(above, "llr", /*header_left=*/true);
  }
  if (const auto average = average_of(results))
    out += fmt::format("\nAverage of {} accuracies: {:.4f}\n", average->metrics.size(), average->accuracy);
  return out;
}

}  // namespace lazy::eval
