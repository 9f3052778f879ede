#include "report/report.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "core/statistics.h"
#include "core/text.h"
#include "report/html.h"
#include "report/run.h"
#include "report/sections.h"
#include "report/style.h"

namespace lazy::report {

namespace {

struct Quality {
  const char* unit;
  int digits;
  std::optional<double> RunData::*value;
};

// The most comparable measure that every run has. Bits per byte is preferred because it does not depend on the
// tokenizer.
const Quality* shared_quality(const std::vector<RunData>& runs) {
  static const Quality kinds[] = {{"bits per byte", 3, &RunData::bits_per_byte},
                                  {"nats per token", 3, &RunData::heldout_loss},
                                  {"perplexity per word", 1, &RunData::word_perplexity}};
  for (const Quality& kind : kinds) {
    bool all = true;
    for (const RunData& run : runs) all = all && (run.*kind.value).has_value() && std::isfinite(*(run.*kind.value));
    if (all && !runs.empty()) return &kind;
  }
  return nullptr;
}

std::string called(const RunData& run) {
  return run.kind == "lazy" ? "Lazy Attention" : run.kind == "softmax" ? "softmax" : run.name;
}

bool is_pair(const std::vector<RunData>& runs) {
  return runs.size() == 2 && runs[0].kind == "lazy" && runs[1].kind == "softmax";
}

std::string budget(const std::vector<RunData>& runs) {
  double low = runs[0].tokens, high = low;
  for (const RunData& run : runs) low = std::min(low, run.tokens), high = std::max(high, run.tokens);
  if (!(low > 0)) return "";
  if (high - low < 0.005 * high)
    return fmt::format("After {} training tokens{}", grouped(high), runs.size() > 1 ? " each" : "");
  return fmt::format("After {} to {} training tokens (the runs differ)", grouped(low), grouped(high));
}

std::string weights_of(const RunData& run) {
  const SinkMeasures& m = run.sinks->overall;
  std::string text = fmt::format("puts {} % of its weight on the first token", percent(m.sink_ratio));
  if (std::fabs(m.released_mass) > 5e-4) text += fmt::format(", releases {} %", percent(m.released_mass));
  if (m.alive_fraction < 0.9995)
    text +=
        fmt::format(" and gives a nonzero weight to {} % of the visible (query, key) pairs", percent(m.alive_fraction));
  return text;
}

// The sink ratio of uniform attention, for comparison; empty if the runs were measured at different lengths.
std::string even_rows(const std::vector<RunData>& runs) {
  const SinkReport* first = nullptr;
  for (const RunData& run : runs) {
    if (!run.sinks || run.kind != "softmax") continue;
    if (first && (first->length != run.sinks->length || first->bos != run.sinks->bos)) return "";
    first = &*run.sinks;
  }
  if (!first || first->length < 1) return "";
  return fmt::format("Softmax over equal scores would put {} % on it (H_T / T at {} tokens); {}",
                     percent(harmonic_number(first->length) / static_cast<double>(first->length)), first->length,
                     first->bos ? "every sample began with BOS" : "samples did not begin with BOS");
}

constexpr double kEarlyTokens = 200e6;
// The head start measured in docs/results/evidence: block B, three seeds.
constexpr const char* kHeadStart =
    "Such an early lead may be a head start: with 55M parameters, a lead of 0.26 nats after 50M tokens (0.15 to 0.37, "
    "three seeds) had shrunk to 0.03 after 200M tokens (0.00 to 0.06)";

}  // namespace

Headline headline(const std::vector<RunData>& runs) {
  Headline result;
  if (runs.empty()) return result;
  const Quality* quality = shared_quality(runs);
  const auto value = [&](size_t i) { return *(runs[i].*quality->value); };
  const auto show = [&](size_t i) { return fixed(value(i), quality->digits); };

  const std::string names = is_pair(runs)      ? "Lazy Attention vs softmax"
                            : runs.size() == 1 ? called(runs[0])
                                               : fmt::format("{} runs", runs.size());
  if (!quality) {
    result.title = names + ": distribution of attention weight";
  } else if (runs.size() == 1) {
    result.title = fmt::format("{}: {} {}", names, show(0), quality->unit);
  } else if (is_pair(runs)) {
    result.title = fmt::format("{}: {} against {} {}", names, show(0), show(1), quality->unit);
  } else {
    size_t best = 0;
    for (size_t i = 1; i < runs.size(); ++i) best = value(i) < value(best) ? i : best;
    result.title = fmt::format("{}: {} is best with {} {}", names, runs[best].name, show(best), quality->unit);
  }

  std::string detail;
  const auto sentence = [&](std::string text) { detail += (detail.empty() ? "" : " ") + std::move(text) + "."; };
  if (quality && is_pair(runs)) {
    const double scale = std::pow(10, quality->digits),
                 gap = std::round(value(0) * scale) / scale - std::round(value(1) * scale) / scale;
    const std::string after = budget(runs);
    const std::string start = after.empty() ? "Lazy Attention" : after + ", Lazy Attention";
    if (std::fabs(gap) < 0.5 / scale) {
      sentence(fmt::format("{} and the compared softmax model have the same loss to the printed digits", start));
    } else {
      sentence(fmt::format("{} is {} {} {} than the compared softmax model on held-out text ({} %)", start,
                           fixed(std::fabs(gap), quality->digits), quality->unit, gap < 0 ? "better" : "worse",
                           fixed(100 * std::fabs(gap) / value(1), 1)));
      if (gap < 0 && runs[0].tokens > 0 && runs[0].tokens < kEarlyTokens) sentence(kHeadStart);
    }
  } else if (!budget(runs).empty()) {
    sentence(budget(runs));
  }
  for (const RunData& run : runs) {
    if (run.sinks && runs.size() <= 2)
      sentence(fmt::format("{} {}", run.kind == "softmax" ? "Softmax" : called(run), weights_of(run)));
  }
  if (const std::string even = even_rows(runs); runs.size() <= 2 && !even.empty()) sentence(even);
  if (runs.size() > 1) sentence("Each configuration was run once, so the variation between seeds is not known");
  result.detail = detail;
  return result;
}

std::string render(std::vector<RunData> runs, const PageInfo& info) {
  const auto rank = [](const RunData& run) { return run.kind == "lazy" ? 0 : run.kind == "softmax" ? 1 : 2; };
  std::stable_sort(runs.begin(), runs.end(), [&](const RunData& a, const RunData& b) { return rank(a) < rank(b); });
  // Two runs with the same name (a/run, b/run) are shown with the paths of their folders.
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
  body += section(
      "weights", "Distribution of attention weight",
      "Softmax weights add up to one, so a head that has nothing to attend to must still put its weight somewhere, "
      "often on the first token: an attention sink. Elastic-Softmax, the normalizer of Lazy Attention, adds an offset "
      "to the softmax weights and "
      "replaces negative values by zero, so that a head can put some weight on no key.",
      weight_pictures(runs));
  body += section("layers", "Layer by layer", "", layer_curves(runs));
  body += section("offsets", "Learned offsets", "", learned_offsets(runs));
  body += section("distance-bias", "Learned distance bias", "", learned_distance_bias(runs));
  body += section("further", "By position and layer", "", further_measures(runs));
  body += section("maps", "Attention over real words", "", attention_maps(runs));
  body += section("samples", "Text samples", "", text_samples(runs));
  body += section("run", "Runs and settings", "", what_was_run(runs, info));
  body += "</main>\n";
  return page(head.title, body);
}

}  // namespace lazy::report
