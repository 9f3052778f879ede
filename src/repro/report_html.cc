// The HTML page of a recipe. It uses the page layout of lazy report and adds figures of offsets and distance biases.
#include <fmt/format.h>

#include "core/text.h"
#include "report/html.h"
#include "report/report.h"
#include "report/sections.h"
#include "repro/report.h"

namespace lazy::repro {
namespace {

std::string table(const std::vector<std::string>& head, const std::vector<std::vector<std::string>>& rows,
                  const char* css_class = "") {
  report::Table out = report::text_table(head, rows);
  out.css_class = css_class;
  return report::to_html(out);
}

// Returns the learned parameters that the steps recorded, in a form that the functions of lazy report can draw.
std::vector<report::RunData> learned_runs(const RecipeRun& run) {
  std::vector<report::RunData> out;
  for (const StepRun& s : run.steps) {
    if (s.step.kind != StepKind::learned || !s.record.is_object()) continue;
    const Json& values = s.record.at("values");
    report::RunData data;
    data.name = s.step.model;
    if (values.contains("tau")) data.learned.tau = values.at("tau").get<std::vector<std::vector<double>>>();
    if (values.contains("distance_bias"))
      data.learned.distance_bias = values.at("distance_bias").get<std::vector<std::vector<std::vector<double>>>>();
    data.learned.tau_initial = values.at("tau_initial").get<double>();
    out.push_back(std::move(data));
  }
  return out;
}

}  // namespace

std::string to_html(const RecipeRun& run) {
  const Recipe& recipe = *run.recipe;
  const Scale& scale = run.conditions.scale;
  const std::string title = fmt::format("{}: {}", recipe.name, recipe.title);
  std::string subject = has_scale(run) ? fmt::format("Scale {}: {}; {}. ", scale.name,
                                                     html_escape(recipe.scale_means(scale)), html_escape(devices(run)))
                                       : "";
  for (const auto& [name, folder] : run.conditions.models)
    subject += fmt::format("Model {}: {}. ", html_escape(name), report::code(folder.string()));
  std::string body = fmt::format(
      "<header><p class=\"eyebrow\">Lazy Attention reproduction · {}</p><h1>{}</h1><p class=\"lede\">Reproduces {}. "
      "{}. {}</p></header>\n<main>\n",
      run.date, html_escape(title), html_escape(recipe.source), summary(run), subject);
  if (const auto chosen = choice(run)) {
    std::string text;
    for (const std::string& paragraph : chosen->paragraphs) text += "<p>" + html_escape(paragraph) + "</p>";
    if (!chosen->table.rows.empty()) text += table(chosen->table.columns, chosen->table.rows);
    body += report::section("choice", html_escape(chosen->title), "", text);
  }
  std::vector<std::vector<std::string>> rows;
  for (const Finding& f : run.findings) {
    rows.push_back({f.claim, f.paper, interval_text(f), over_text(f), p_text(f), verdict_text(f, run), f.reason});
  }
  body += report::section(
      "verdicts", "Verdicts", cautions(run),
      table({"Statement tested", "Paper", "Here (95 % interval)", "Interval over", "Adjusted p", "Verdict", "Why"},
            rows, "statements"));
  rows.clear();
  for (const MeasuredRow& row : measured_rows(run)) {
    rows.push_back({row.name});
    rows.back().insert(rows.back().end(), row.cells.begin(), row.cells.end());
  }
  std::vector<std::string> head{"Model"};
  head.insert(head.end(), kMeasuredColumns.begin(), kMeasuredColumns.end());
  if (!rows.empty()) body += report::section("measured", "Measured", "", table(head, rows));
  int number = 0;
  for (const ResultTable& t : result_tables(run)) {
    std::string drawn;
    for (const Figure& figure : t.figures) drawn += report::figure(figure.drawing, html_escape(figure.title));
    body += report::section(fmt::format("table-{}", ++number), html_escape(t.title), html_escape(t.note),
                            table(t.columns, t.rows) + drawn);
  }
  const auto learned = learned_runs(run);
  if (!learned.empty()) {
    body += report::section("offsets", "Learned offsets", "", report::learned_offsets(learned));
    body += report::section("distance-bias", "Learned distance bias", "", report::learned_distance_bias(learned));
  }
  if (recipe.pictures) body += recipe.pictures(results_of(run));
  rows.clear();
  for (const PublishedRow& row : recipe.published.rows) {
    rows.push_back({row.name});
    for (const double v : row.values) rows.back().push_back(fmt::format("{:g}", v));
    rows.back().push_back(row.model.empty() ? "cited" : row.model);
  }
  head = {""};
  head.insert(head.end(), recipe.published.columns.begin(), recipe.published.columns.end());
  head.push_back("here");
  if (!rows.empty())
    body += report::section("published", "Published", html_escape(recipe.published.title), table(head, rows));
  std::string notes;
  for (const std::string& note : recipe.notes) notes += "<li>" + html_escape(note) + "</li>";
  if (!run.command.empty()) notes += "<li>" + report::code(run.command) + "</li>";
  if (!notes.empty()) body += report::section("notes", "Notes", "", "<ul>" + notes + "</ul>");
  body += "</main>\n";
  return report::page(title, body);
}

}  // namespace lazy::repro
