#include "report/report.h"

#include <fmt/format.h>

#include <algorithm>

#include "core/text.h"
#include "report/run_status.h"
#include "report/sections.h"
#include "report/style.h"

namespace lazy::report {

std::string render(std::vector<RunData> runs, const PageInfo& info) {
  const auto rank = [](const RunData& run) { return run.kind == "lazy" ? 0 : run.kind == "softmax" ? 1 : 2; };
  std::stable_sort(runs.begin(), runs.end(), [&](const RunData& a, const RunData& b) { return rank(a) < rank(b); });
  // Two runs of one name (a/run, b/run) are told apart by their folders.
  for (size_t i = 0; i < runs.size(); ++i) {
    for (size_t j = i + 1; j < runs.size(); ++j) {
      if (runs[i].name == runs[j].name) {
        runs[i].name = runs[i].folder.string();
        runs[j].name = runs[j].folder.string();
      }
    }
  }
  const Headline head = headline(runs);
  std::string status;
  for (const RunData& run : runs) {
    if (const std::string text = status_text(run); !text.empty()) {
      status += fmt::format("<p class=\"lede\">{}: {}.</p>", html_escape(run.name), html_escape(text));
    }
  }
  std::string body = page_header("Lazy Attention report", info.date, head.title, head.detail, status);
  body += "<main>\n" + result_tiles(runs);
  body += section("curves", "Learning", "", learning_curves(runs));
  body += section("results", "Results", "", result_table(runs));
  body += section("benchmarks", "Benchmarks", "", benchmark_table(runs));
  body += section("lengths", "By length of the text", "", length_losses(runs));
  body += section("weights", "Where the weight goes",
                  "Softmax weights add up to one, so a head with nothing to say must still put its weight somewhere, "
                  "often on the first "
                  "token: an attention sink. Elastic-Softmax lets a head give weight to nothing.",
                  weight_pictures(runs));
  body += section("layers", "Layer by layer", "", layer_curves(runs));
  body += section("offsets", "Learned offsets", "", learned_offsets(runs));
  body += section("distance-bias", "Learned distance bias", "", learned_distance_bias(runs));
  body += section("further", "By position and layer", "", further_measures(runs));
  body += section("maps", "Attention over real words", "", attention_maps(runs));
  body += section("samples", "What the models write", "", text_samples(runs));
  body += section("run", "What was run", "", what_was_run(runs, info));
  body += "</main>\n";
  return page(head.title, body);
}

}  // namespace lazy::report
