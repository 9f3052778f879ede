// The benchmarks' accuracies and the losses by length, a row a run.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <set>

#include "core/text.h"
#include "report/format.h"
#include "report/sections.h"
#include "report/table.h"

namespace lazy::report {
namespace {

// unit: what the value is multiplied by.
std::string cell(const std::optional<double>& value, double unit, int digits, const std::string& below = "") {
  if (!value) return "<td>–</td>";
  if (!std::isfinite(*value)) return "<td>not a number</td>";
  return "<td>" + with_line(fixed(unit * *value, digits), below) + "</td>";
}

std::string share_cell(const std::optional<double>& share, const std::string& below = "") {
  return cell(share, 100, 1, below);
}

constexpr const char* kWide = "results wide";

const Score* score_of(const RunData& run, const std::string& task) {
  const auto found = std::find_if(run.scores.begin(), run.scores.end(), [&](const Score& s) { return s.task == task; });
  return found == run.scores.end() ? nullptr : &*found;
}

// Every task that a run has, in the order of the first run that has it.
std::vector<const Score*> tasks_of(const std::vector<RunData>& runs) {
  std::vector<const Score*> tasks;
  for (const RunData& run : runs) {
    for (const Score& score : run.scores) {
      if (std::none_of(tasks.begin(), tasks.end(), [&](const Score* s) { return s->task == score.task; }))
        tasks.push_back(&score);
    }
  }
  return tasks;
}

}  // namespace

std::string benchmark_table(const std::vector<RunData>& runs) {
  const auto tasks = tasks_of(runs);
  if (tasks.empty()) return "";
  const bool mean =
      std::any_of(runs.begin(), runs.end(), [](const RunData& run) { return run.mean_score.has_value(); });
  std::string head = table_column("Run"), rows, guessed;
  bool chance = false;
  for (const Score* task : tasks) {
    head += table_column(with_line(html_escape(task->task), html_escape(task->metric)));
    guessed += share_cell(task->chance);
    chance |= task->chance.has_value();
  }
  if (mean) head += table_column("mean");
  for (size_t i = 0; i < runs.size(); ++i) {
    if (runs[i].scores.empty()) continue;
    std::string cells;
    for (const Score* task : tasks) {
      const Score* score = score_of(runs[i], task->task);
      if (score && score->metric != task->metric) score = nullptr;  // two measures under one heading would mislead
      cells +=
          score ? share_cell(score->value, score->error ? "±" + fixed(100 * *score->error, 1) : "") : share_cell({});
    }
    rows += table_row(run_name(runs, i), cells + (mean ? share_cell(runs[i].mean_score) : ""));
  }
  if (chance) rows += table_row("guessing", guessed + (mean ? "<td></td>" : ""));
  return figure(table(kWide, head, rows),
                "Accuracies in percent, each with its standard error; higher is better. " +
                    std::string(mean ? "The mean is of the accuracies that the headings name. " : "") + "Made by " +
                    code("lazy eval MODEL_DIR --tasks all --data DIR --output RUN/eval.json") + ".");
}

std::string length_losses(const std::vector<RunData>& runs) {
  std::set<int64_t> lengths;
  for (const RunData& run : runs) {
    for (const auto& [length, loss] : run.loss_by_length) lengths.insert(length);
  }
  if (lengths.empty()) return "";
  std::string head = table_column("Run"), rows;
  for (const int64_t length : lengths) head += table_column(with_line(grouped(static_cast<double>(length)), "tokens"));
  for (size_t i = 0; i < runs.size(); ++i) {
    const auto& losses = runs[i].loss_by_length;
    if (losses.empty()) continue;
    std::string cells;
    for (const int64_t length : lengths) {
      const auto at = losses.find(length);
      cells += cell(at == losses.end() ? std::nullopt : std::optional(at->second), 1, 3);
    }
    rows += table_row(run_name(runs, i), cells);
  }
  return figure(table(kWide, head, rows),
                "Nats a token of held-out text cut into pieces of so many tokens; lower is better. Made by " +
                    code("lazy eval MODEL_DIR --lengths N,... --corpus DIR --output RUN/lengths.json") + ".");
}

}  // namespace lazy::report
