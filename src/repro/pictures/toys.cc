// Figures of the toy transformers: attention maps by step and sequence, measured values by token rank, and embeddings.
#include <fmt/format.h>

#include <algorithm>

#include "core/statistics.h"
#include "core/text.h"
#include "report/heat_map.h"
#include "report/html.h"
#include "report/plot.h"
#include "report/sections.h"
#include "repro/pictures.h"

namespace lazy::repro {
namespace {

using Doubles = std::vector<double>;

std::vector<const Json*> of_variant(const Results& results, const std::string& data, const std::string& variant) {
  std::vector<const Json*> out;
  for (int64_t seed = 0; const Json* values = results.find(fmt::format("{}.{}.seed{}", data, variant, seed)); ++seed)
    out.push_back(values);
  return out;
}

std::string embedding_plot(const Json& run) {
  const Json& points = run.at("snapshots").back().at("embedding");
  report::Plot plot;
  plot.label = "Token embeddings, coordinate 1 against coordinate 2";
  plot.x_label = "coordinate 1";
  plot.y_label = "coordinate 2";
  std::vector<report::Curve> curves{{{}, "dots s0", false, 0}, {{}, "dots s2", false, 0}, {{}, "dots s1", false, 3}};
  for (size_t t = 0; t < points.size(); ++t) {
    const double x = points.at(t).at(0), y = points.at(t).at(1);
    curves[t >= 100 ? 2 : t < 50 ? 0 : 1].points.emplace_back(x, y);
  }
  plot.curves = std::move(curves);
  report::fit_axes(plot);
  const double dx = 0.05 * (plot.x_high - plot.x_low) + 1e-6, dy = 0.05 * (plot.y_high - plot.y_low) + 1e-6;
  plot.x_low -= dx, plot.x_high += dx, plot.y_low -= dy, plot.y_high += dy;
  return report::draw(plot, 296, 300, "small");
}

std::string rank_plot(const std::vector<const Json*>& runs, const char* field, const char* what) {
  report::Plot plot;
  plot.label = fmt::format("{} by token rank", what);
  plot.x_label = "token rank (0: most frequent)";
  plot.y_label = what;
  plot.x_high = 99;
  plot.y_high = 1e-9;
  for (size_t n = 0; n < runs.size(); ++n) {
    report::Curve curve{{}, fmt::format("curve thin s{}", n % 8), true, -1};
    for (size_t t = 0; t < 100; ++t) {
      const Json& value = runs[n]->at(field).at(t);
      if (value.is_null()) continue;
      curve.points.emplace_back(static_cast<double>(t), value.get<double>());
      plot.y_high = std::max(plot.y_high, 1.05 * value.get<double>());
    }
    plot.curves.push_back(std::move(curve));
  }
  return report::draw(plot, 296, 240, "small");
}

// Draws the attention maps of the first seed, with one slider for snapshots and one for sequences.
std::string toy_maps(const std::string& id, const Json& run, bool bos) {
  const Json &snapshots = run.at("snapshots"), &sequences = run.at("sequences");
  report::MapAxis steps{"step", {}};
  for (const Json& s : snapshots) steps.labels.push_back(std::to_string(s.at("step").get<int64_t>()));
  return report::map_browser(
      id, {steps, report::numbered("sequence", sequences.size(), 1)}, [&](size_t step, size_t sequence) {
        std::vector<std::string> tokens;
        if (bos) tokens.emplace_back("BOS");
        for (const int64_t token : sequences.at(sequence).get<std::vector<int64_t>>())
          tokens.push_back(std::to_string(token));
        return report::draw_compact(
            {0, 0, tokens, snapshots.at(step).at("maps").at(sequence).get<std::vector<Doubles>>()});
      });
}

}  // namespace

std::string draw_toys(const Results& results, const std::string& data) {
  std::string body;
  for (const char* variant : {"bos", "plain"}) {
    const auto runs = of_variant(results, data, variant);
    if (runs.empty()) continue;
    const bool bos = variant == std::string("bos");
    body += fmt::format("<h3>{}</h3>", bos ? "With BOS" : "Without BOS");
    body += report::figure(
        toy_maps(fmt::format("{}-{}", data, variant), *runs.front(), bos) + report::draw_weight_bar(),
        "Attention of seed 0 by training step and sequence. Row: query. Column: key, in the same order.", "splittable");
    std::string panels =
        "<div class=\"panel\"><h4>Attention received</h4>" + rank_plot(runs, "received", "weight received") + "</div>";
    if (bos)
      panels += "<div class=\"panel\"><h4>Distance to BOS</h4>" + rank_plot(runs, "distance", "distance") + "</div>";
    if (data == "unigram") {
      for (size_t n = 0; n < runs.size(); ++n)
        panels += fmt::format("<div class=\"panel\"><h4>Embeddings, seed {}</h4>{}</div>", n, embedding_plot(*runs[n]));
    }
    body +=
        report::figure("<div class=\"multiples\">" + panels + "</div>",
                       "One curve per seed. Embeddings: the frequent half of the vocabulary in the first color, the "
                       "other half in the third color, BOS as a diamond.");
  }
  return body.empty() ? "" : report::section("toys", "Attention and embeddings of the toy models", "", body);
}

namespace {

constexpr const char* kTriggerVariants[] = {"softmax", "relu", "elastic", "softpick", "off-by-one", "gated"};

// Draws the attention weights on the first held-out sequence.
std::string trigger_map(const Json& run) {
  const auto weights = run.at("maps").at(0).get<std::vector<Doubles>>();
  const auto trigger = run.at("triggers").at(0).get<size_t>();
  std::vector<std::string> tokens;
  for (size_t t = 0; t < weights.size(); ++t)
    tokens.push_back(t == 0 ? "BOS" : t == trigger ? "trigger" : std::to_string(t));
  return report::draw_compact({0, 0, tokens, weights});
}

}  // namespace

std::string draw_triggers(const Results& results) {
  report::Plot plot;
  plot.label = "Error by training step, one curve per seed";
  plot.x_label = "step";
  plot.y_label = "error relative to output zero";
  plot.y_kind = report::Scale::Kind::log;
  plot.x_high = 1, plot.y_low = 1, plot.y_high = 1;
  std::string panels;
  size_t series = 0;
  for (const char* variant : kTriggerVariants) {
    const auto runs = of_variant(results, "trigger", variant);
    const size_t own = series++;
    if (runs.empty()) continue;
    plot.legend.emplace_back(variant, report::Curve{{}, fmt::format("curve s{}", own), true, -1});
    for (const Json* run : runs) {
      report::Curve curve{{}, fmt::format("curve thin s{}", own), true, -1};
      for (const Json& point : run->at("curve")) {
        const double step = point.at("step"), error = std::max(1e-9, point.at("error").get<double>());
        curve.points.emplace_back(step, error);
        plot.x_high = std::max(plot.x_high, step);
        plot.y_low = std::min(plot.y_low, error);
        plot.y_high = std::max(plot.y_high, error);
      }
      plot.curves.push_back(std::move(curve));
    }
    panels += fmt::format("<div class=\"panel\"><h4>{}</h4>{}</div>", variant, trigger_map(*runs.front()));
  }
  if (panels.empty()) return "";
  const std::string maps =
      report::figure("<div class=\"multiples\">" + panels + "</div>" + report::draw_weight_bar(),
                     "Attention weights of seed 0 on one held-out sequence. Row: query. Column: key.");
  return report::section("triggers", "Attention weights and error", "",
                         maps + report::figure(report::draw_responsive(plot), "Error on held-out sequences."));
}

}  // namespace lazy::repro
