// What `lazy eval --compare` prints.
#include <fmt/format.h>

#include <cmath>

#include "core/text.h"
#include "eval/compare/compare.h"

namespace lazy::eval {
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
    for (const std::string& task : comparison.left_out) out += fmt::format("{}: only in one of them, left out\n", task);
  }
  if (logarithms) out += "The difference of perplexities is that of their logarithms.\n";
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
