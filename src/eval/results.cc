#include "eval/results.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cmath>

namespace lazy::eval {
using nlohmann::ordered_json;

ordered_json to_json(const std::vector<TaskResult>& results, const ResultInfo& info) {
  ordered_json out;
  double seconds = 0;
  for (const char* key : {"results", "group_subtasks", "configs", "versions", "n-shot", "higher_is_better", "n-samples"}) {
    out[key] = ordered_json::object();
  }
  for (const TaskResult& task : results) {
    ordered_json& values = out["results"][task.name];
    values["name"] = task.name;
    values["alias"] = task.name;
    values["sample_len"] = task.effective;
    for (const Metric& metric : task.metrics) {
      // JSON has no NaN and no infinity: null says that there is no number.
      values[metric.name + ",none"] = std::isfinite(metric.value) ? ordered_json(metric.value) : ordered_json();
      values[metric.name + "_stderr,none"] = "N/A";
      out["higher_is_better"][task.name][metric.name] = metric.higher_is_better;
    }
    out["group_subtasks"][task.name] = ordered_json::array();
    out["configs"][task.name] = task.config;
    out["versions"][task.name] = task.version;
    out["n-shot"][task.name] = 0;
    out["n-samples"][task.name] = {{"original", task.original}, {"effective", task.effective}};
    seconds += task.seconds;
  }
  out["config"] = {{"model", "lazy"},
                   {"model_args", {{"pretrained", info.model_path}, {"kind", info.model_kind}, {"add_bos_token", info.bos}}},
                   {"model_num_parameters", info.parameters},
                   {"model_dtype", info.dtype},
                   {"batch_size", std::to_string(info.batch_size)},
                   {"batch_sizes", ordered_json::array()},
                   {"device", info.device},
                   {"limit", info.limit ? ordered_json(*info.limit) : ordered_json()},
                   {"command", info.command}};
  out["date"] = std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();
  out["lazy_version"] = LAZY_VERSION;
  out["max_length"] = info.max_length;
  out["model_source"] = "lazy";
  out["model_name"] = info.model_path;
  std::string sanitized = info.model_path;
  std::replace_if(sanitized.begin(), sanitized.end(), [](unsigned char c) { return !std::isalnum(c) && c != '-' && c != '_' && c != '.'; }, '_');
  out["model_name_sanitized"] = sanitized;
  out["tokenizer_fingerprint"] = info.tokenizer_fingerprint;
  out["total_evaluation_time_seconds"] = fmt::format("{:.3f}", seconds);
  return out;
}

std::string to_table(const std::vector<TaskResult>& results) {
  std::vector<std::vector<std::string>> rows = {{"Tasks", "Version", "Filter", "n-shot", "Metric", "", "Value", "", "Stderr"}};
  for (const TaskResult& task : results) {
    std::vector<Metric> metrics = task.metrics;
    std::sort(metrics.begin(), metrics.end(), [](const Metric& a, const Metric& b) { return a.name < b.name; });
    bool first = true;
    for (const Metric& metric : metrics) {
      rows.push_back({first ? task.name : "", first ? task.version : "", "none", "0", metric.name, metric.higher_is_better ? "↑" : "↓",
                      fmt::format("{:.4f}", metric.value), "±", "N/A"});
      first = false;
    }
  }
  const auto width = [](const std::string& text) {  // characters, not bytes
    return static_cast<size_t>(std::count_if(text.begin(), text.end(), [](char c) { return (c & 0xC0) != 0x80; }));
  };
  std::vector<size_t> widths(rows[0].size(), 1);
  for (const auto& row : rows) {
    for (size_t c = 0; c < row.size(); ++c) widths[c] = std::max(widths[c], width(row[c]));
  }
  std::string table;
  for (size_t r = 0; r < rows.size(); ++r) {
    for (size_t c = 0; c < rows[r].size(); ++c) {
      const std::string padding(widths[c] - width(rows[r][c]), ' ');
      const bool right = r > 0 && (c == 1 || c == 3 || c == 6 || c == 8);
      table += "|" + (right ? padding + rows[r][c] : rows[r][c] + padding);
    }
    table += "|\n";
    if (r == 0) {
      for (size_t c = 0; c < widths.size(); ++c) {
        const bool right = c == 1 || c == 3 || c == 6 || c == 8;
        table += "|" + (right ? std::string(std::max<size_t>(1, widths[c] - 1), '-') + ":" : std::string(widths[c], '-'));
      }
      table += "|\n";
    }
  }
  return table;
}

}  // namespace lazy::eval
