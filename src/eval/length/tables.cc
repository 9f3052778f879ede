// Formats the results of `lazy eval --lengths` as text tables.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <functional>

#include "core/text.h"
#include "eval/length/length_eval.h"

namespace lazy::eval::length {
namespace {

using Rows = std::vector<std::vector<std::string>>;

// Formats a Markdown table. The first column is aligned to the left, the number columns to the right.
std::string aligned(const Rows& rows) { return markdown_table(rows, "lr") + "\n"; }

std::string number(double value) {
  return std::fabs(value) < 1e4 ? fmt::format("{:.{}f}", value, std::fabs(value) < 10 ? 3 : 2)
                                : fmt::format("{:.3g}", value);
}

std::string with_interval(const Json& row, const std::string& key) {
  std::string text = number(row[key].get<double>());
  const std::string interval = key + "_interval";
  if (row.contains(interval) && !row[interval].is_null()) {
    text += fmt::format(" [{}, {}]", number(row[interval][0].get<double>()), number(row[interval][1].get<double>()));
  }
  return text;
}

// Formats a table with one row for each name that occurs in the list of any model, and one column for each model.
// `list` returns the list of a model; `name` returns the row name of a list entry.
std::string by_model(const Json& results, const Json& models, const std::string& corner, const std::string& key,
                     const std::function<Json(const Json&)>& list,
                     const std::function<std::string(const Json&)>& name) {
  Rows rows = {{corner}};
  for (size_t m = 0; m < models.size(); ++m) {
    rows[0].push_back(results["models"][m]["label"].get<std::string>());
    for (const Json& row : list(models[m])) {
      auto at = std::find_if(rows.begin() + 1, rows.end(), [&](const auto& r) { return r[0] == name(row); });
      if (at == rows.end()) at = rows.insert(rows.end(), {name(row)});
      at->resize(m + 1);
      at->push_back(with_interval(row, key));
    }
  }
  for (auto& row : rows) row.resize(models.size() + 1);
  return aligned(rows);
}

Json lengths_of(const Json& model) { return model["lengths"]; }
std::string length_of(const Json& row) { return std::to_string(row["length"].get<int64_t>()); }

std::string units(const Json& model) {
  const auto unit = model["unit"].get<std::string>();
  const auto count = model["units"].get<int64_t>();
  if (count < 2) return "no confidence interval, because the text is a single document, item or block";
  const size_t word = unit.find(' ');  // change "block of 4096 tokens" to "blocks of 4096 tokens"
  return fmt::format("95 % interval over {} {}", count,
                     word == std::string::npos ? unit + "s" : unit.substr(0, word) + "s" + unit.substr(word));
}

std::string curves(const Json& results, const std::string& task, const Json& models) {
  const Json& first = models[0];
  const auto table = [&](const std::string& what, const std::string& key) {
    return fmt::format("{}: {} [{}]\n", task, what, units(first)) +
           by_model(results, models, "window", key, lengths_of, length_of);
  };
  if (task == "lambada_openai") {
    std::string text = table("perplexity per token; each stream consists of whole items", "perplexity");
    text += table("accuracy of the last words of the items in the streams", "word_accuracy");
    text += table("perplexity of the last words of the items in the streams", "word_perplexity");
    // the standard score is not available yet: it is measured after the last length
    if (!models.back().contains("standard")) return text;
    const auto standard = [](const Json& model) { return Json::array({model["standard"]}); };
    const auto name = [](const Json& row) { return fmt::format("max_length {}", row["max_length"].get<int64_t>()); };
    text += task + ": standard score, with each item in a separate context: accuracy\n" +
            by_model(results, models, "", "word_accuracy", standard, name);
    return text + task + ": standard score, with each item in a separate context: perplexity\n" +
           by_model(results, models, "", "word_perplexity", standard, name);
  }
  std::string text;
  if (first["lengths"][0].contains("word_perplexity")) text += table("perplexity per word", "word_perplexity");
  text += table("perplexity per token", "perplexity");
  if (!first["lengths"][0].contains("positions")) return text;
  text += fmt::format(
      "{}: loss in nats per token by the number of tokens that the model sees, in its longest windows\n", task);
  return text + by_model(
                    results, models, "tokens", "loss",
                    [](const Json& model) { return model["lengths"].back()["positions"]; },
                    [](const Json& bin) {
                      const auto from = bin["from"].get<int64_t>(), to = bin["to"].get<int64_t>();
                      return from == to ? std::to_string(from) : fmt::format("{}-{}", from, to);
                    });
}

std::string change(const Json& results, const std::string& task, const Json& result) {
  if (!result.contains("change_against_first")) return "";
  std::string text;
  for (const Json& comparison : result["change_against_first"]) {
    const auto label = [&](size_t m) { return results["models"][m]["label"].get<std::string>(); };
    Rows rows = {{"window", "more than " + label(0)}};
    for (const Json& row : comparison["lengths"]) {
      Json cell = {{"d", row["difference"]}, {"d_interval", row["interval"]}};
      rows.push_back({length_of(row), with_interval(cell, "d")});
    }
    text += fmt::format(
                "{}: how much the loss of {} rises from the shortest window to each longer window, in nats per token\n",
                task, label(comparison["model"].get<size_t>())) +
            aligned(rows);
  }
  return text;
}

std::string synthetic(const Json& results, const std::string& task, const Json& models) {
  std::string text;
  for (size_t m = 0; m < models.size(); ++m) {
    for (const auto& [key, what] :
         {std::pair{"exact", "exact answers, %"}, std::pair{"log_likelihood", "log-likelihood of the answer, nats"}}) {
      Rows rows = {{"length"}};
      for (const Json& cell : models[m]["lengths"][0]["depths"])
        rows[0].push_back(fmt::format("depth {:g} %", 100 * cell["depth"].get<double>()));
      const bool absent =
          std::string(key) != "exact" && models[m]["lengths"][0]["depths"][0].contains("log_likelihood_absent");
      if (absent) rows[0].push_back("not planted");
      for (const Json& row : models[m]["lengths"]) {
        rows.push_back({length_of(row)});
        for (const Json& cell : row["depths"]) {
          const double value = cell[key].get<double>();
          rows.back().push_back(std::string(key) == "exact" ? fmt::format("{:.0f}", 100 * value) : number(value));
        }
        if (absent) rows.back().push_back(number(row["depths"][0]["log_likelihood_absent"].get<double>()));
      }
      text += fmt::format("{}: {}: {}\n", task, results["models"][m]["label"].get<std::string>(), what) + aligned(rows);
    }
  }
  return text;
}

}  // namespace

std::string to_table(const Json& results) {
  std::string text;
  for (const auto& [task, result] : results["results"].items()) {
    const Json& models = result["models"];
    if (models.empty()) continue;  // the results are unfinished, and this task has not begun
    text += task == "passkey" || task == "recall" ? synthetic(results, task, models)
                                                  : curves(results, task, models) + change(results, task, result);
  }
  text.pop_back();
  return text;
}

}  // namespace lazy::eval::length
