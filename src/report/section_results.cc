// The tiles and the table of results.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <functional>

#include "core/text.h"
#include "report/format.h"
#include "report/palette.h"
#include "report/sections.h"
#include "report/table.h"

namespace lazy::report {
namespace {

struct Measure {
  std::string name, explanation;
  std::function<std::optional<double>(const RunData&)> value;
  std::function<std::string(double)> show;
  enum class Better { lower, higher, neither } better = Better::neither;
};

std::function<std::optional<double>(const RunData&)> from_sinks(double SinkMeasures::*field) {
  return [field](const RunData& run) { return run.sinks ? std::optional(run.sinks->overall.*field) : std::nullopt; };
}

std::optional<double> positive(double value) { return value > 0 ? std::optional(value) : std::nullopt; }

constexpr size_t kColumnsOfRuns = 6;  // more have a row each

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
      {"Density", "weight on keys but the first", from_sinks(&SinkMeasures::density), share, B::neither},
      {"Sink ratio", "weight on the first key", from_sinks(&SinkMeasures::sink_ratio), share, B::neither},
      {"Released mass", "weight given to no key", from_sinks(&SinkMeasures::released_mass), share, B::neither},
      {"Alive fraction", "visible pairs with weight above zero", from_sinks(&SinkMeasures::alive_fraction), share,
       B::neither},
      {"Sink<sub>1</sub><sup>0.3</sup>", "heads whose first key gets over 0.3", from_sinks(&SinkMeasures::sink_1),
       share, B::neither},
      {"Training tokens", "", [](const RunData& r) { return positive(r.tokens); }, count, B::neither},
      {"Training speed", "tokens a second, median", [](const RunData& r) { return positive(r.tokens_per_second); },
       count, B::neither},
      {"Training time", "h:mm:ss or m:ss", [](const RunData& r) { return positive(r.seconds); }, human_seconds,
       B::neither},
  };
}

}  // namespace

std::string result_table(const std::vector<RunData>& runs) {
  std::vector<std::string> names, titles;
  std::vector<std::vector<std::string>> cells;  // [measure][run]
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
      cells.back().push_back(
          fmt::format("<td{}>{}</td>", !best.empty() && text == best ? " class=\"best\"" : "", text));
    }
  }
  if (titles.empty()) return "";
  const bool by_run = runs.size() > kColumnsOfRuns;
  const auto &across = by_run ? titles : names, &down = by_run ? names : titles;
  std::string head = table_column(by_run ? "Run" : "Measure"), rows;
  for (const std::string& title : across) head += table_column(title);
  for (size_t r = 0; r < down.size(); ++r) {
    std::string line;
    for (size_t c = 0; c < across.size(); ++c) line += by_run ? cells[c][r] : cells[r][c];
    rows += table_row(down[r], line);
  }
  std::string sources;
  for (const RunData& run : runs) {
    const std::string source = run.eval_command.empty() ? run.heldout_source : run.eval_command;
    if (run.heldout_loss)
      sources += fmt::format("{}{}: {}", sources.empty() ? "" : "; ", html_escape(run.name), code(source));
  }
  return figure(
      table(by_run ? "results wide" : "results", head, rows),
      "The best loss is bold; the other measures have no better side. Shares are means over samples, layers, heads and "
      "queries; density, sink ratio and released mass add up to 100\u2009%." +
          (sources.empty() ? "" : " Loss from " + sources + "."));
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
      if (!v && runs.size() > kColumnsOfRuns) continue;  // a page full of dashes
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

}  // namespace lazy::report
