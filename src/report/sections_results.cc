// Sections of results: tiles, the table of measures, benchmarks, losses by length.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <set>

#include "core/text.h"
#include "report/html.h"
#include "report/sections.h"
#include "report/style.h"

namespace lazy::report {

// The tiles and the table of results.

namespace {

struct Measure {
  std::string name, explanation;
  std::function<std::optional<double>(const RunData&)> value;
  std::function<std::string(double)> show;
  enum class Better { lower, higher, neither } better = Better::neither;
};

template <class Value>  // double or std::optional<double>
std::function<std::optional<double>(const RunData&)> from_sinks(Value SinkMeasures::*field) {
  return [field](const RunData& run) { return run.sinks ? std::optional(run.sinks->overall.*field) : std::nullopt; };
}

std::optional<double> positive(double value) { return value > 0 ? std::optional(value) : std::nullopt; }

constexpr size_t kColumnsOfRuns = 6;  // more runs become rows
constexpr const char* kWide = "results wide";

std::vector<Measure> measures() {
  using B = Measure::Better;
  const auto digits = [](int n) { return [n](double v) { return fixed(v, n); }; };
  const auto share = [](double v) { return percent(v) + "\u2009%"; };
  const auto count = [](double v) { return human_count(v); };
  return {
      {"Held-out loss", "nats per token", [](const RunData& r) { return r.heldout_loss; }, digits(4), B::lower},
      {"Bits per byte", "compares across tokenizers", [](const RunData& r) { return r.bits_per_byte; }, digits(3),
       B::lower},
      {"Perplexity", "per token", [](const RunData& r) { return r.perplexity; }, digits(2), B::lower},
      {"WikiText perplexity", "per word", [](const RunData& r) { return r.word_perplexity; }, digits(1), B::lower},
      {"Density", "weight on all keys except the first", from_sinks(&SinkMeasures::density), share, B::neither},
      {"Sink ratio", "weight on the first key", from_sinks(&SinkMeasures::sink_ratio), share, B::neither},
      {"Released mass", "weight given to no key", from_sinks(&SinkMeasures::released_mass), share, B::neither},
      {"Alive fraction", "visible pairs with weight above zero", from_sinks(&SinkMeasures::alive_fraction), share,
       B::neither},
      {"Sink<sub>1</sub><sup>0.3</sup>", "heads with more than 0.3 of the weight on the first key",
       from_sinks(&SinkMeasures::sink_1), share, B::neither},
      {"Training tokens", "", [](const RunData& r) { return positive(r.tokens); }, count, B::neither},
      {"Training speed", "tokens per second, fastest interval",
       [](const RunData& r) { return positive(r.tokens_per_second); }, count, B::neither},
      {"Training time", "h:mm:ss or m:ss", [](const RunData& r) { return positive(r.seconds); }, human_seconds,
       B::neither},
  };
}

}  // namespace

namespace {

std::string speed_note(const std::vector<RunData>& runs) {
  if (runs.size() < 2 || std::none_of(runs.begin(), runs.end(), [](const RunData& r) { return r.seconds > 0; })) {
    return "";
  }
  return " Speeds and times can be compared only if the machine ran nothing else: a process that runs at the same time "
         "slows training down. The speed is measured over the fastest interval between two log lines; " +
         code("lazy bench train") + " measures speeds of configurations.";
}

}  // namespace

std::string result_table(const std::vector<RunData>& runs) {
  std::vector<std::string> names, titles;
  std::vector<std::vector<Cell>> cells;  // [measure][run]
  for (size_t i = 0; i < runs.size(); ++i) names.push_back(run_name(runs, i));
  for (const Measure& m : measures()) {
    std::vector<std::optional<double>> values;
    for (const RunData& run : runs) values.push_back(m.value(run));
    if (std::none_of(values.begin(), values.end(), [](const auto& v) { return v.has_value(); })) continue;
    std::string best;
    if (m.better != Measure::Better::neither && runs.size() > 1) {
      std::optional<double> winner;
      for (const auto& v : values) {
        if (v && (!winner || (m.better == Measure::Better::lower ? *v < *winner : *v > *winner))) winner = v;
      }
      best = m.show(*winner);
    }
    titles.push_back(with_line(m.name, m.explanation));
    cells.emplace_back();
    for (const auto& v : values) {
      const std::string text = v ? std::isfinite(*v) ? m.show(*v) : "not a number" : "–";
      cells.back().push_back({text, !best.empty() && text == best ? "best" : ""});
    }
  }
  if (titles.empty()) return "";
  const bool by_run = runs.size() > kColumnsOfRuns;
  const auto &across = by_run ? titles : names, &down = by_run ? names : titles;
  Table table{by_run ? kWide : "results"};
  table.columns.push_back({by_run ? "Run" : "Measure"});
  for (const std::string& title : across) table.columns.push_back(title);
  for (size_t r = 0; r < down.size(); ++r) {
    Table::Row& row = table.rows.emplace_back();
    row.title = down[r];
    for (size_t c = 0; c < across.size(); ++c) row.cells.push_back(by_run ? cells[c][r] : cells[r][c]);
  }
  std::string sources, note;
  const auto has_best = [](const std::vector<Cell>& row) {
    return std::any_of(row.begin(), row.end(), [](const Cell& cell) { return cell.css_class == "best"; });
  };
  if (std::any_of(cells.begin(), cells.end(), has_best))
    note = "The best loss is bold; for the other measures no direction is better. ";
  for (const RunData& run : runs) {
    const std::string source = run.eval_command.empty() ? run.heldout_source : run.eval_command;
    if (run.heldout_loss)
      sources += fmt::format("{}{}: {}", sources.empty() ? "" : "; ", html_escape(run.name), code(source));
  }
  return figure(to_html(table),
                note +
                    "Shares are means over samples, "
                    "layers, heads and queries; density, sink ratio and released mass add up to 100\u2009%." +
                    (sources.empty() ? "" : " Loss from " + sources + ".") + speed_note(runs));
}

std::string result_tiles(const std::vector<RunData>& runs) {
  const auto all = measures();
  std::string tiles;
  for (const char* wanted : {"Bits per byte", "Sink ratio", "Released mass", "Alive fraction"}) {
    const auto m = std::find_if(all.begin(), all.end(), [&](const Measure& x) { return x.name == wanted; });
    const bool is_share = m->better == Measure::Better::neither;
    double high = is_share ? 1 : 0;
    bool any = false;
    for (const RunData& run : runs) {
      if (const auto v = m->value(run); v && std::isfinite(*v)) any = true, high = std::max(high, *v);
    }
    if (!any) continue;
    std::string bars;
    for (size_t i = 0; i < runs.size(); ++i) {
      const auto v = m->value(runs[i]);
      if (!v && runs.size() > kColumnsOfRuns) continue;  // avoids a page full of dashes
      const bool good = v && std::isfinite(*v);
      bars += fmt::format(
          "<div class=\"bar {}\"><span class=\"bar-name\">{}</span><b>{}</b><i style=\"width:{}%\"></i></div>",
          series_class(i), html_escape(runs[i].name), good ? m->show(*v) : "–",
          coordinate(good ? std::clamp(100 * *v / high, 0.0, 100.0) : 0));
    }
    tiles += fmt::format("<div class=\"tile\"><h3>{}</h3><p>{}</p>{}</div>", m->name, m->explanation, bars);
  }
  return tiles.empty() ? "" : "<div class=\"tiles\">" + tiles + "</div>\n";
}

// Accuracies on benchmarks and losses by length, one row per run.

namespace {

// A table cell with the value times `unit`.
Cell cell(const std::optional<double>& value, double unit, int digits, const std::string& below = "") {
  if (!value) return std::string("–");
  if (!std::isfinite(*value)) return std::string("not a number");
  return with_line(fixed(unit * *value, digits), below);
}

Cell share_cell(const std::optional<double>& share, const std::string& below = "") {
  return cell(share, 100, 1, below);
}

const Score* score_of(const RunData& run, const std::string& task) {
  const auto found = std::find_if(run.scores.begin(), run.scores.end(), [&](const Score& s) { return s.task == task; });
  return found == run.scores.end() ? nullptr : &*found;
}

// The tasks of all runs, in order of first appearance.
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
  Table table{kWide};
  table.columns.push_back({"Run"});
  Table::Row guessing{"guessing", {}};
  bool chance = false;
  for (const Score* task : tasks) {
    table.columns.push_back(with_line(html_escape(task->task), html_escape(task->metric)));
    guessing.cells.push_back(share_cell(task->chance));
    chance |= task->chance.has_value();
  }
  if (mean) table.columns.push_back({"mean"});
  for (size_t i = 0; i < runs.size(); ++i) {
    if (runs[i].scores.empty()) continue;
    Table::Row& row = table.rows.emplace_back();
    row.title = run_name(runs, i);
    for (const Score* task : tasks) {
      const Score* score = score_of(runs[i], task->task);
      if (score && score->metric != task->metric) score = nullptr;  // different metrics must not share one column
      row.cells.push_back(score ? share_cell(score->value, score->error ? "±" + fixed(100 * *score->error, 1) : "")
                                : share_cell({}));
    }
    if (mean) row.cells.push_back(share_cell(runs[i].mean_score));
  }
  if (mean) guessing.cells.emplace_back();
  if (chance) table.rows.push_back(guessing);
  return figure(to_html(table), "Accuracies in percent, each with its standard error; higher is better. " +
                                    std::string(mean ? "The mean is over the accuracies in the headings. " : "") +
                                    "Created by " +
                                    code("lazy eval MODEL_DIR --tasks all --data DIR --output RUN/eval.json") + ".");
}

std::string length_losses(const std::vector<RunData>& runs) {
  std::set<int64_t> lengths;
  for (const RunData& run : runs) {
    for (const auto& [length, loss] : run.loss_by_length) lengths.insert(length);
  }
  if (lengths.empty()) return "";
  Table table{kWide};
  table.columns.push_back({"Run"});
  for (const int64_t length : lengths)
    table.columns.push_back(with_line(grouped(static_cast<double>(length)), "tokens"));
  for (size_t i = 0; i < runs.size(); ++i) {
    const auto& losses = runs[i].loss_by_length;
    if (losses.empty()) continue;
    Table::Row& row = table.rows.emplace_back();
    row.title = run_name(runs, i);
    for (const int64_t length : lengths) {
      const auto at = losses.find(length);
      row.cells.push_back(cell(at == losses.end() ? std::nullopt : std::optional(at->second), 1, 3));
    }
  }
  return figure(to_html(table),
                "Loss in nats per token on held-out text that is cut into pieces of the given length; lower is better. "
                "Created by " +
                    code("lazy eval MODEL_DIR --lengths N,... --corpus DIR --output RUN/lengths.json") + ".");
}

}  // namespace lazy::report
