#include "report/length_page.h"

#include <fmt/format.h>

#include "core/error.h"
#include "core/text.h"
#include "report/length_curves.h"
#include "report/report.h"
#include "report/sections.h"

namespace lazy::report {
namespace {

std::string models_table(const Field& models) {
  std::string body;
  for (size_t m = 0; m < models.size(); ++m) {
    const Field model = models.at(m);
    body += fmt::format("<tr><th>{}</th><td>{}</td><td>{:.0f}</td><td>{:g}</td><td>{}</td></tr>",
                        length_name(models, m), html_escape(model["kind"].string()), model["training_length"].number(),
                        model["rope_base"].number(), html_escape(model["path"].string()));
  }
  return "<div class=\"scroll\"><table class=\"settings\"><thead><tr><th>model</th><th class=\"text\">kind</th><th "
         "class=\"text\">trained at</th><th class=\"text\">RoPE base</th><th class=\"text\">folder</th></tr>"
         "</thead><tbody>" +
         body + "</tbody></table></div>";
}

// Lengths that were left out, one line each.
std::string skipped(const Field& models, const Field& result) {
  std::string items;
  for (size_t m = 0; m < models.size(); ++m) {
    const Field rows = result["models"].at(m)["skipped"];
    for (size_t r = 0; r < rows.size(); ++r) {
      items += fmt::format("<p class=\"notes\">{}: length {:.0f} left out: {}.</p>", length_name(models, m),
                           rows.at(r)["length"].number(), html_escape(rows.at(r)["why"].string()));
    }
  }
  return items;
}

std::string task_section(const std::string& task, const Field& models, const Field& result) {
  if (result["models"].size() != models.size()) result["models"].wrong("one entry a model");
  for (size_t m = 0; m < models.size(); ++m) {
    if (result["models"].at(m)["lengths"].size() == 0) result["models"].at(m)["lengths"].wrong("a length at least");
  }
  if (task == "passkey")
    return section(task, "Passkey retrieval", "", probe_maps(models, result, task) + skipped(models, result));
  if (task == "recall")
    return section(task, "Associative recall", "", probe_maps(models, result, task) + skipped(models, result));
  const bool lambada = task == "lambada_openai";
  const std::string lead =
      fmt::format("Intervals over {:.0f} {}s of {}.", result["models"].at(0)["units"].number(),
                  html_escape(result["models"].at(0)["unit"].string()), html_escape(result["source"].string()));
  const bool words = !lambada && result["models"].at(0)["lengths"].at(0).has("word_perplexity");
  std::string body =
      perplexity_by_length(models, result) +
      length_table(models, result, words ? "word_perplexity" : "perplexity", lambada ? "stream" : "window");
  if (!lambada) body += "<h3>By position in the window</h3>" + loss_by_position(models, result);
  body += change_table(models, result) + (lambada ? lambada_words(models, result) : "") + skipped(models, result);
  return section(task, lambada ? "LAMBADA in streams" : task == "wikitext" ? "WikiText" : "Held-out text", lead, body);
}

}  // namespace

std::string render_lengths(const Json& json, const std::string& file, const PageInfo& info) {
  const Field study(json, file);
  if (study["schema"].string() != "lazy.length/1") study["schema"].wrong("\"lazy.length/1\"");
  const Field models = study["models"];
  if (models.size() == 0) models.wrong("a model at least");
  const std::string title = "How models fare with length";
  std::string body = page_header("Lazy Attention report", info.date, title,
                                 fmt::format("{} {} at context lengths from {:.0f} to {:.0f} tokens.", models.size(),
                                             models.size() == 1 ? "model" : "models and variants",
                                             study["config"]["lengths"].numbers().front(),
                                             study["config"]["lengths"].numbers().back())) +
                     "<main>\n" + section("models", "What was measured", "", models_table(models));
  for (const auto& [task, result] : study["results"].json().items())
    body += task_section(task, models, study["results"][task]);
  body += section("run", "What was run", "", "<p>" + code(info.command) + "</p>") + "</main>\n";
  return page(title, body);
}

}  // namespace lazy::report
