#include "repro/report.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <set>

#include "core/file.h"
#include "core/percent.h"
#include "core/statistics.h"
#include "core/text.h"
#include "report/run.h"
#include "report/svg.h"
#include "repro/measure.h"

namespace lazy::repro {
namespace {

std::string cell(const std::string& text) {
  std::string out;
  for (const char c : text) out += c == '|' ? "\\|" : std::string(1, c);
  return out;
}

// Formats a number with four significant digits, which is suitable for small differences and for token counts.
std::string figure(double value) { return std::isfinite(value) ? fmt::format("{:.4g}", value) : "not a number"; }

std::string mean_cell(const Json* values, const char* field, bool percent) {
  if (!values || !values->contains(field)) return "–";
  const Json& items = values->at(field);
  if (std::any_of(items.begin(), items.end(), [](const Json& item) { return item.is_null(); })) return "not a number";
  const double mean = mean_of(items.get<std::vector<double>>());
  return percent ? percent_number(mean) + " %" : fmt::format("{:.4f}", mean);
}

std::string perplexity_cell(const Json* tasks) {
  if (!tasks || !tasks->contains("wikitext")) return "–";
  const double value = tasks->at("wikitext").at("word_perplexity").at("value").get<double>();
  return value < 1000 ? fmt::format("{:.2f}", value) : fmt::format("{:.0f}", value);
}

// Returns the mean accuracy and the number of tasks, for example "47.29 % of 8".
std::string score_cell(const Json* tasks) {
  const auto mean = tasks ? mean_accuracy(*tasks) : std::nullopt;
  return mean ? fmt::format("{:.2f} % of {}", 100 * mean->first, mean->second) : "–";
}

// Returns the separator line of a Markdown table, without its first bar.
std::string rules(size_t columns) {
  return fmt::format("{}", fmt::join(std::vector<std::string>(columns, "---|"), ""));
}

std::string table_markdown(const ResultTable& table) {
  std::string out = fmt::format("| {} |\n|{}\n", fmt::join(table.columns, " | "), rules(table.columns.size()));
  for (const auto& row : table.rows) out += fmt::format("| {} |\n", fmt::join(row, " | "));
  return out;
}

std::string published_markdown(const PublishedTable& table) {
  if (table.rows.empty()) return "";
  std::string out = fmt::format("\n## Published\n\n{}.\n\n| | {} | here |\n|---|{}---|\n", table.title,
                                fmt::join(table.columns, " | "), rules(table.columns.size()));
  for (const PublishedRow& row : table.rows) {
    std::string cells;
    for (const double v : row.values) cells += fmt::format(" {:g} |", v);
    out += fmt::format("| {} |{} {} |\n", row.name, cells, row.model.empty() ? "cited" : row.model);
  }
  return out;
}

}  // namespace

std::string interval_text(const Finding& f) {
  if (!f.estimate) return "–";
  const UnitEstimate& e = *f.estimate;
  const std::string unit = f.unit.empty() ? "" : " " + f.unit;
  if (!e.interval || e.by_unit.size() < 2) return figure(e.value) + unit;
  return fmt::format("{} [{}, {}]{}", figure(e.value), figure(e.interval->low), figure(e.interval->high), unit);
}

std::string over_text(const Finding& f) {
  if (!f.estimate) return "–";
  const size_t n = f.estimate->by_unit.size();
  if (f.over == "seeds" && n == 1) return "one seed";
  return n == 1 ? f.over : fmt::format("{} {}", n, f.over);
}

std::string p_text(const Finding& f) { return f.adjusted_p ? fmt::format("{:.3g}", *f.adjusted_p) : "–"; }

std::string verdict_text(const Finding& f, const RecipeRun& run) {
  std::string about = f.models;
  if (has_scale(run)) about = run.conditions.scale.name + " scale" + (about.empty() ? "" : ", " + about);
  return name(f.verdict) + (about.empty() ? "" : " (" + about + ")");
}

bool trains(const RecipeRun& run) {
  return std::any_of(run.steps.begin(), run.steps.end(),
                     [](const StepRun& s) { return s.step.kind == StepKind::train; });
}

bool has_scale(const RecipeRun& run) {
  return std::any_of(run.steps.begin(), run.steps.end(),
                     [](const StepRun& s) { return s.step.kind != StepKind::experiment || !s.step.model.empty(); }) ||
         run.steps.empty();
}

std::string summary(const RecipeRun& run) {
  const auto count = [&](Verdict verdict) {
    return std::count_if(run.findings.begin(), run.findings.end(),
                         [&](const Finding& f) { return f.verdict == verdict; });
  };
  std::string out = fmt::format("{} reproduced, {} refuted, {} open", count(Verdict::reproduced),
                                count(Verdict::refuted), count(Verdict::open));
  if (const auto n = count(Verdict::not_testable); n > 0) out += fmt::format(", {} not testable here", n);
  return out;
}

std::string devices(const RecipeRun& run) {
  std::set<std::string> all;
  for (const StepRun& s : run.steps)
    if (s.record.is_object()) all.insert(s.record.value("device", run.conditions.device));
  return all.empty() ? run.conditions.device : fmt::format("{}", fmt::join(all, ", "));
}

std::string cautions(const RecipeRun& run) {
  std::vector<std::string> out;
  const Scale& scale = run.conditions.scale;
  if (run.unfinished > 0)
    out.push_back(fmt::format("{} of {} steps have not run yet; claims that need them are open.", run.unfinished,
                              run.steps.size()));
  const auto recorded =
      std::count_if(run.steps.begin(), run.steps.end(), [](const StepRun& s) { return !s.evidence.empty(); });
  if (recorded > 0) out.push_back(fmt::format("{} of {} steps are taken from records.", recorded, run.steps.size()));
  if (trains(run) && run.conditions.seeds == 1)
    out.emplace_back(
        "Each model was trained only once, so differences between models are not significant; --seeds N trains more.");
  if (has_scale(run) && !scale.is_paper())
    out.push_back(fmt::format("A result at {} scale does not decide the claim at the paper's scale.", scale.name));
  return fmt::format("{}", fmt::join(out, " "));
}

std::vector<MeasuredRow> measured_rows(const RecipeRun& run) {
  std::vector<MeasuredRow> rows;
  const Results results = results_of(run);
  for (const StepRun& s : run.steps) {
    if (s.step.kind != StepKind::train || s.step.trial || !s.record.is_object()) continue;
    const Json& trained = s.record.at("values");
    const Json *heldout = results.find(s.step.id + ".heldout"), *sinks = results.find(s.step.id + ".sinks"),
               *tasks = results.find(s.step.id + ".tasks");
    const auto count = [&](const char* field) {
      return trained.contains(field) ? human_count(trained.at(field).get<double>()) : "–";
    };
    std::string row = s.step.id;
    if (trained.contains("given")) {
      const auto differences = trained.at("differences").get<std::vector<std::string>>();
      row += fmt::format(" (given{}{})", differences.empty() ? "" : "; ", fmt::join(differences, ", "));
    }
    rows.push_back({row,
                    {count("parameters"), count("tokens"), count("tokens_per_second"),
                     mean_cell(heldout, "loss", false), mean_cell(sinks, "sink_ratio", true),
                     mean_cell(sinks, "density", true), mean_cell(sinks, "released_mass", true),
                     mean_cell(sinks, "alive_fraction", true), perplexity_cell(tasks), score_cell(tasks)}});
  }
  return rows;
}

namespace {

// Returns the measured losses of the trials of models with alternatives, and which alternative was selected.
ResultTable trial_table(const RecipeRun& run) {
  ResultTable table{"Trials",
                    {"model", "trained with", "tokens", "held-out loss", "chosen"},
                    {},
                    "The model is trained with the alternative whose trial (first seed only) has the lowest loss."};
  const StepValues values = recorded_values(run);
  for (const StepRun& s : run.steps) {
    if (s.step.seed != 1 || !s.step.settings.contains("alternatives")) continue;
    const auto chosen = chosen_alternative(s.step, values);
    for (size_t n = 0; n < s.step.beside.size(); ++n) {
      const std::string& id = s.step.beside[n];
      const Json *loss = values(id), *training = values(id.substr(0, id.rfind('.')));
      table.rows.push_back({s.step.id, s.step.settings.at("alternatives").at(n).get<std::string>(),
                            training ? human_count(training->at("tokens").get<double>()) : "–",
                            mean_cell(loss, "loss", false),
                            !chosen        ? "–"
                            : *chosen == n ? "yes"
                                           : "no"});
    }
  }
  return table;
}

}  // namespace

std::vector<ResultTable> result_tables(const RecipeRun& run) {
  std::vector<ResultTable> tables;
  if (run.recipe->tables) tables = run.recipe->tables(run.conditions, results_of(run));
  if (ResultTable trials = trial_table(run); !trials.rows.empty()) tables.push_back(std::move(trials));
  return tables;
}

std::optional<Choice> choice(const RecipeRun& run) {
  return run.recipe->choice ? run.recipe->choice(run.conditions, results_of(run)) : std::nullopt;
}

Json to_json(const RecipeRun& run) {
  const Recipe& recipe = *run.recipe;
  const Conditions& c = run.conditions;
  Json domains = Json::object();
  for (const auto& [domain, folder] : c.domains) domains[domain] = folder.string();
  Json models = Json::object();
  for (const auto& [model, folder] : c.models) models[model] = folder.string();
  Json out{{"recipe", recipe.name},
           {"title", recipe.title},
           {"reproduces", recipe.source},
           {"scale", c.scale.name},
           {"scale_means", recipe.scale_means(c.scale)},
           {"device", devices(run)},
           {"seeds", c.seeds},
           {"corpus", c.corpus.string()},
           {"data", c.data.string()},
           {"domains", domains},
           {"models", models},
           {"command", run.command},
           {"date", run.date},
           {"version", LAZY_VERSION},
           {"summary", summary(run)},
           {"unfinished", run.unfinished}};
  out["findings"] = Json::array();
  for (const Finding& f : run.findings) {
    Json item{{"claim", f.claim},           {"paper", f.paper},
              {"verdict", name(f.verdict)}, {"scale", has_scale(run) ? c.scale.name : ""},
              {"models", f.models},         {"reason", f.reason}};
    if (f.estimate) {
      const UnitEstimate& e = *f.estimate;
      item["ours"] = {{"value", e.value},
                      {"low", e.interval ? Json(e.interval->low) : Json()},
                      {"high", e.interval ? Json(e.interval->high) : Json()},
                      {"n", e.by_unit.size()},
                      {"unit", f.unit},
                      {"interval_over", f.over}};
      if (f.over == "seeds") item["ours"]["by_seed"] = e.by_unit;
    }
    item["adjusted_p"] = f.adjusted_p ? Json(*f.adjusted_p) : Json();
    out["findings"].push_back(item);
  }
  const std::vector<ResultTable> tables = result_tables(run);
  if (recipe.tables || !tables.empty()) out["tables"] = Json::array();
  for (const ResultTable& table : tables) {
    out["tables"].push_back({{"title", table.title}, {"columns", table.columns}, {"rows", table.rows}});
    if (!table.note.empty()) out["tables"].back()["note"] = table.note;
  }
  if (const auto chosen = choice(run))
    out["choice"] = {{"title", chosen->title},
                     {"paragraphs", chosen->paragraphs},
                     {"columns", chosen->table.columns},
                     {"rows", chosen->table.rows}};
  out["published"] = Json::array();
  for (const PublishedRow& row : recipe.published.rows) {
    Json values = Json::object();
    for (size_t i = 0; i < row.values.size(); ++i) values[recipe.published.columns.at(i)] = row.values[i];
    out["published"].push_back({{"row", row.name},
                                {"source", recipe.published.title},
                                {"cited", row.model.empty()},
                                {"model", row.model},
                                {"values", values}});
  }
  out["steps"] = Json::array();
  for (const StepRun& s : run.steps) {
    Json item{{"id", s.step.id}, {"kind", name(s.step.kind)}, {"folder", s.folder.string()}, {"left_out", s.left_out}};
    if (!s.evidence.empty()) item["evidence"] = s.evidence;
    if (s.record.is_object()) item["seconds"] = s.record.at("seconds");
    out["steps"].push_back(item);
  }
  out["notes"] = recipe.notes;
  return out;
}

std::string to_markdown(const RecipeRun& run, bool figures) {
  const Recipe& recipe = *run.recipe;
  const Conditions& c = run.conditions;
  std::string head = fmt::format("Reproduces {}. ", recipe.source);
  if (has_scale(run))
    head += fmt::format("Scale {}: {}; {}, {} training seed{}. ", c.scale.name, recipe.scale_means(c.scale),
                        devices(run), c.seeds, c.seeds == 1 ? "" : "s");
  for (const auto& [name, folder] : c.models) head += fmt::format("Model {}: {}. ", name, folder.string());
  std::string out = fmt::format("# {}: {}\n\n{}\n", recipe.name, recipe.title, wrapped(head + run.date + "."));
  if (!run.command.empty()) out += "\n    " + run.command + "\n";
  const bool families =
      std::any_of(run.findings.begin(), run.findings.end(), [](const Finding& f) { return !f.family.empty(); });
  head = fmt::format(
      "**{}.** Intervals are 95 % confidence intervals (Student's t); the table names their units. The claims of {} "
      "share one Holm correction.",
      summary(run), families ? "a question" : "this page");
  if (const std::string more = cautions(run); !more.empty()) head += " " + more;
  out += "\n" + wrapped(head) + "\n";
  if (const auto chosen = choice(run)) {
    out += fmt::format("\n## {}\n", chosen->title);
    for (const std::string& paragraph : chosen->paragraphs) out += "\n" + wrapped(paragraph) + "\n";
    if (!chosen->table.rows.empty()) out += "\n" + table_markdown(chosen->table);
    out += "\n## Verdicts\n";
  }
  out +=
      "\n| statement tested | paper | here | interval over | adjusted p | verdict | why |\n"
      "|---|---|---|---|---|---|---|\n";
  for (const Finding& f : run.findings) {
    out += fmt::format("| {} | {} | {} | {} | {} | {} | {} |\n", cell(f.claim), cell(f.paper), cell(interval_text(f)),
                       over_text(f), p_text(f), cell(verdict_text(f, run)), cell(f.reason));
  }
  const auto rows = measured_rows(run);
  if (!rows.empty()) {
    out += fmt::format("\n## Measured\n\n| model | {} |\n|---|{}\n", fmt::join(kMeasuredColumns, " | "),
                       rules(kMeasuredColumns.size()));
    for (const MeasuredRow& row : rows) out += fmt::format("| {} | {} |\n", row.name, fmt::join(row.cells, " | "));
  }
  for (const ResultTable& table : result_tables(run)) {
    out += fmt::format("\n## {}\n\n{}", table.title, table_markdown(table));
    if (!table.note.empty()) out += "\n" + wrapped(table.note) + "\n";
    for (const Figure& figure : table.figures) {
      if (figures) out += fmt::format("\n![{}]({})\n", figure.title, figure.file);
    }
  }
  out += published_markdown(recipe.published);
  out += "\n## Steps\n\n| step | kind | time | folder |\n|---|---|---|---|\n";
  for (const StepRun& s : run.steps) {
    out += fmt::format("| {} | {} | {} | {} |\n", s.step.id, name(s.step.kind),
                       s.record.is_object() ? human_seconds(s.record.at("seconds").get<double>()) : "–",
                       !s.left_out.empty()  ? "left out: " + s.left_out
                       : s.evidence.empty() ? s.folder.string()
                                            : "record " + s.evidence);
  }
  if (!recipe.notes.empty()) out += "\n## Notes\n\n";
  for (const std::string& note : recipe.notes) out += wrapped("- " + note, "  ") + "\n";
  return out;
}

std::optional<LastRun> last_run(const Recipe& recipe, const Conditions& conditions, const RecordedRuns& records) {
  LastRun last{conditions.scale.name, "", 0};
  Conditions of_seeds = conditions;
  std::set<std::string> before;  // steps of the seeds that were processed in earlier iterations
  for (int64_t seed = 1; seed <= conditions.seeds; ++seed) {
    of_seeds.seeds = seed;
    const std::vector<Step> plan = recipe.plan(of_seeds);
    const auto recorded = records.steps(plan);
    bool trained = !recorded.empty();
    int64_t measured = 0, missing = 0;
    std::string date;
    for (const Step& step : plan) {
      if (!before.insert(step.id).second || step.needs == "data") continue;
      const auto found = recorded.find(step.id);
      const bool training = step.kind == StepKind::train;
      if (found == recorded.end()) {
        ++missing;
        trained &= !training;
        continue;
      }
      measured += training ? 0 : 1;
      date = std::max(date, found->second.record.at("finished").get<std::string>());
    }
    if (!trained || (missing > 0 && (seed > 1 || measured == 0))) continue;
    ++last.seeds;
    last.missing = missing;
    last.date = std::max(last.date, date);
    if (missing > 0) break;
  }
  return last.seeds > 0 ? std::optional(last) : std::nullopt;
}

std::optional<LastRun> last_run(const std::string& recipe, const std::filesystem::path& output) {
  std::optional<LastRun> last;
  for (const Scale& scale : scales()) {
    const std::filesystem::path folder = output / scale.name, path = folder / (recipe + ".json");
    if (!std::filesystem::exists(path)) continue;
    const Json report = report::load_json(path);
    // The report may be newer than the results, so the dates of the steps are used.
    std::string date;
    for (const Json& step : report.value("steps", Json::array())) {
      const auto name = std::filesystem::path(step.value("folder", std::string())).filename();
      const std::filesystem::path record = folder / "steps" / name / "record.json";
      if (!name.empty() && std::filesystem::exists(record))
        date = std::max(date, report::load_json(record).value("finished", std::string()));
    }
    if (date.empty()) date = report.value("date", std::string());
    if (!last || date > last->date) last = {scale.name, date, report.value("seeds", int64_t{1})};
  }
  return last;
}

void write_page(const RecipeRun& run, const std::filesystem::path& page) {
  write_file_atomic(page, to_markdown(run, /*figures=*/true));
  for (const ResultTable& table : result_tables(run)) {
    for (const Figure& f : table.figures)
      write_file_atomic(page.parent_path() / f.file, report::svg_file(f.drawing, f.width, f.height, f.label));
  }
}

std::filesystem::path write_report(const RecipeRun& run, const std::filesystem::path& folder) {
  std::filesystem::create_directories(folder);
  const std::filesystem::path markdown = folder / (run.recipe->name + ".md");
  write_file_atomic(folder / (run.recipe->name + ".json"),
                    to_json(run).dump(2, ' ', false, Json::error_handler_t::replace) + "\n");
  write_file_atomic(folder / (run.recipe->name + ".html"), to_html(run));
  write_file_atomic(markdown, to_markdown(run));
  return markdown;
}

}  // namespace lazy::repro
