#include "eval/results.h"

#include <fmt/chrono.h>
#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <ctime>

#include "core/checksum.h"
#include "core/error.h"
#include "core/file.h"
#include "core/text.h"

namespace lazy::eval {

namespace {

std::string python_number(double value) {
  if (std::isnan(value)) return "nan";
  if (std::isinf(value)) return value < 0 ? "-inf" : "inf";
  return Json(value).dump();
}

std::string dumped(const Json& value, int indent) {
  return value.dump(indent, ' ', false, Json::error_handler_t::replace);
}

// Returns a metric value of a document in the form in which lm-evaluation-harness logs it: an int for greedy accuracy,
// a float for multiple choice, and (value, weight) for a perplexity per word or byte.
Json logged_value(const Task& task, size_t metric, const Question& question, double value) {
  const std::string& name = task.metrics[metric];
  if (task.output_type == OutputType::loglikelihood_rolling)
    return Json::array({value, name == "word_perplexity" ? question.words : question.bytes});
  if (task.output_type == OutputType::loglikelihood && name == "acc") return static_cast<int64_t>(value);
  return value;
}

}  // namespace

Json sample_record(const Task& task, int64_t doc_id, const TaskDocument& row, const Question& question,
                   const std::vector<Score>& scores, const std::vector<double>& values) {
  const bool rolling = task.output_type == OutputType::loglikelihood_rolling;
  Json record = {{"doc_id", doc_id}, {"doc", row.document}, {"target", question.target}};
  Json arguments = Json::object(), responses = Json::array(), filtered = Json::array();
  for (size_t i = 0; i < scores.size(); ++i) {
    Json& argument = arguments["gen_args_" + std::to_string(i)];
    argument["arg_0"] = rolling ? question.text : question.pairs[i].context;
    if (!rolling) argument["arg_1"] = question.pairs[i].continuation;
    Json response = python_number(scores[i].log_likelihood);
    if (!rolling) response = Json::array({response, scores[i].greedy ? "True" : "False"});
    responses.push_back(Json::array({response}));
    filtered.push_back(std::move(response));
  }
  record["arguments"] = std::move(arguments);
  record["resps"] = std::move(responses);
  record["filtered_resps"] = std::move(filtered);
  record["filter"] = "none";
  record["metrics"] = task.metrics;
  record["doc_hash"] = sha256_hex(dumped(row.document, 2));
  record["prompt_hash"] = sha256_hex(rolling ? question.text : question.pairs[0].context);
  record["target_hash"] = sha256_hex(question.target);
  for (size_t m = 0; m < values.size(); ++m) record[task.metrics[m]] = logged_value(task, m, question, values[m]);
  return record;
}

using nlohmann::ordered_json;
namespace {

// Returns null for NaN and infinity, which JSON does not support.
ordered_json number(double value) { return std::isfinite(value) ? ordered_json(value) : ordered_json(); }

double rescaled(double accuracy, double chance) { return (accuracy - chance) / (1 - chance); }

// Returns (accuracy - chance) / (1 - chance) as text, or "N/A" if the accuracy of the baseline, `chance`, is 1.
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

// The mean of one accuracy per task (Task::headline). It is reported if at least eight tasks have such an accuracy,
// because the average in Table 1 of the paper is over eight tasks.
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
  if (!info.unfinished.empty()) out["unfinished"] = info.unfinished;
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
  if (info.bos_every_window) out["config"]["model_args"]["bos_every_window"] = true;
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
  bool replaced = false;  // whether the previous character was replaced by '_'
  for (const char c : name) {
    const bool reserved = std::string_view("\"<>:/|\\?*[]").find(c) != std::string_view::npos;
    if (!reserved)
      out += c;
    else if (!replaced)
      out += "__";
    replaced = reserved;
  }
  return out;
}

std::string to_table(const std::vector<TaskResult>& results) {
  using Rows = std::vector<std::vector<std::string>>;
  Rows rows = {{"Tasks", "Version", "Filter", "n-shot", "Metric", "", "Value", "", "Stderr"}};
  Rows rescaled_rows = {{"Tasks", "Metric", "Value", "Random", "Rescaled", "Majority", "Rescaled"}};
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
      rescaled_rows.push_back({task->name, metric.name, fmt::format("{:.4f}", metric.value),
                               fmt::format("{:.4f}", random), rescaled_text(metric.value, random),
                               fmt::format("{:.4f}", majority), rescaled_text(metric.value, majority)});
    }
  }
  std::string out = markdown_table(rows, "lrlrllrlr", /*header_left=*/true);
  if (rescaled_rows.size() > 1) {
    out +=
        "\nRandom: accuracy of random guessing. Majority: accuracy if the most frequent answer is always given.\n"
        "Rescaled: (accuracy - baseline) / (1 - baseline), where the baseline is the column to the left.\n" +
        markdown_table(rescaled_rows, "llr", /*header_left=*/true);
  }
  if (const auto average = average_of(results))
    out += fmt::format("\nAverage of {} accuracies: {:.4f}\n", average->metrics.size(), average->accuracy);
  return out;
}

namespace fs = std::filesystem;
namespace {

bool is_file_name(const fs::path& output) { return output.extension() == ".json"; }

// Returns the local time in the form of the file names of lm-evaluation-harness: 2025-01-31T23-59-59.123456.
std::string date_id() {
  const auto now = std::chrono::system_clock::now();
  const auto micros = std::chrono::duration_cast<std::chrono::microseconds>(now.time_since_epoch()).count() % 1'000'000;
  const std::time_t seconds = std::chrono::system_clock::to_time_t(now);
  std::tm local{};
  ::localtime_r(&seconds, &local);
  return fmt::format("{:%Y-%m-%dT%H-%M-%S}.{:06}", local, micros);
}

}  // namespace

ResultFiles::ResultFiles(fs::path output) : file_(std::move(output)), date_(date_id()) {
  const bool named = is_file_name(file_);
  if (named && fs::is_directory(file_))
    fail("eval", "--output {}: expected a file name, found a folder", file_.string());
  if (!named && fs::exists(file_) && !fs::is_directory(file_)) {
    fail("eval", "--output {}: expected a folder or a name that ends in .json, found an existing file", file_.string());
  }
  folder_ = named ? file_.parent_path() : file_;
  if (!named) file_ /= fmt::format("results_{}.json", date_);
  partial_ = file_;
  partial_.replace_extension(".partial.json");
}

void ResultFiles::write_samples(const TaskResult& task) const {
  if (task.samples.empty()) return;
  create_folder();
  write_file_atomic(folder_ / fmt::format("samples_{}_{}.jsonl", task.name, date_), task.samples);
}

void ResultFiles::write_partial(const std::string& json) const {
  create_folder();
  write_file_atomic(partial_, json);
}

void ResultFiles::write(const std::string& json) const {
  create_folder();
  write_file_atomic(file_, json);
  std::error_code ignored;
  fs::remove(partial_, ignored);
}

void ResultFiles::create_folder() const {
  std::error_code error;
  if (!folder_.empty()) fs::create_directories(folder_, error);
  if (error) fail("eval", "--output {}: {}", folder_.string(), error.message());
}

}  // namespace lazy::eval
