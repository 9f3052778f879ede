// Sections about the runs: text samples, facts, settings, missing files.
#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <set>

#include "core/text.h"
#include "report/html.h"
#include "report/sections.h"

namespace lazy::report {

std::string run_name(const std::vector<RunData>& runs, size_t index) { return series_name(index, runs[index].name); }

std::string legend(const std::vector<RunData>& runs) {
  std::string items;
  for (size_t i = 0; i < runs.size(); ++i) items += run_name(runs, i);
  return "<p class=\"legend\">" + items + "</p>";
}

std::string text_samples(const std::vector<RunData>& runs) {
  std::string body;
  for (size_t i = 0; i < runs.size(); ++i) {
    if (runs[i].samples.empty()) continue;
    std::string texts;
    for (const Sample& sample : runs[i].samples) {
      // The text may or may not begin with its prompt.
      const bool repeats = sample.text.rfind(sample.prompt, 0) == 0;
      texts += fmt::format("<blockquote><b class=\"prompt\">{}</b>{}</blockquote>", html_escape(sample.prompt),
                           html_escape(repeats ? sample.text.substr(sample.prompt.size()) : sample.text));
    }
    body += fmt::format("<div class=\"panel\"><h3>{}</h3>{}</div>", run_name(runs, i), texts);
  }
  if (body.empty()) return "";
  return figure("<div class=\"samples\">" + body + "</div>",
                "The prompt is bold; the model generated the rest. Created by " +
                    code("lazy generate MODEL_DIR --prompt TEXT") + ".",
                "splittable");
}

namespace {

using Pairs = std::vector<std::pair<std::string, std::string>>;

// Keys in the order of first appearance.
std::vector<std::string> keys_of(const std::vector<RunData>& runs, Pairs RunData::*pairs) {
  std::vector<std::string> keys;
  std::set<std::string> seen;
  for (const RunData& run : runs) {
    for (const auto& [key, value] : run.*pairs) {
      if (seen.insert(key).second) keys.push_back(key);
    }
  }
  return keys;
}

enum class Rows { differing, without_model, model };

std::string compare(const std::vector<RunData>& runs, Pairs RunData::*pairs, Rows which) {
  Table table{"settings"};
  table.columns.emplace_back();
  for (size_t i = 0; i < runs.size(); ++i) table.columns.push_back({run_name(runs, i), "text"});
  for (const std::string& key : keys_of(runs, pairs)) {
    const bool of_model = key.rfind("model.", 0) == 0;
    if ((which == Rows::model && !of_model) || (which == Rows::without_model && of_model)) continue;
    std::vector<std::string> values;
    for (const RunData& run : runs) {
      const auto found =
          std::find_if((run.*pairs).begin(), (run.*pairs).end(), [&](const auto& pair) { return pair.first == key; });
      values.push_back(found == (run.*pairs).end() ? "–" : found->second);
    }
    const bool differ = std::any_of(values.begin(), values.end(), [&](const auto& v) { return v != values.front(); });
    if (which == Rows::differing && !differ) continue;
    Table::Row& row = table.rows.emplace_back();
    row.title = html_escape(key);
    row.css_class = differ ? "differs" : "";
    for (const auto& value : values) row.cells.push_back({html_escape(value), "text"});
  }
  return table.rows.empty() ? "" : to_html(table);
}

}  // namespace

std::string what_was_run(const std::vector<RunData>& runs, const PageInfo& info) {
  std::string body, notes;
  if (const std::string facts = compare(runs, &RunData::facts, Rows::without_model); !facts.empty()) {
    body += figure(
        facts,
        "From each run's " + code("run.json") + (runs.size() > 1 ? "; rows in which the runs differ are marked." : "."),
        "splittable");
  }
  if (const std::string shape = compare(runs, &RunData::facts, Rows::model); !shape.empty()) {
    body += "<details><summary>Complete model settings</summary>" + shape + "</details>";
  }
  if (runs.size() > 1) {
    if (const std::string differences = compare(runs, &RunData::settings, Rows::differing); !differences.empty()) {
      body += "<h3>Settings that differ</h3>" +
              figure(differences, "From each run's resolved " + code("config.toml") + ".", "splittable");
    }
  }
  for (const RunData& run : runs) {
    if (!run.config_text.empty()) {
      body += fmt::format("<details><summary>Configuration of {}</summary><pre class=\"scroll\">{}</pre></details>",
                          html_escape(run.name), html_escape(run.config_text));
    }
    for (const auto& note : run.missing)
      notes += fmt::format("<li>{}: {}</li>", html_escape(run.folder.string()), html_escape(note));
  }
  if (!notes.empty()) body += "<h3>Missing files</h3><ul class=\"notes\">" + notes + "</ul>";
  if (!info.command.empty()) body += "<p>This page was created by " + code(info.command) + ".</p>";
  return body;
}

}  // namespace lazy::report
