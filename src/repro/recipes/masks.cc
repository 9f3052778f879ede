#include "repro/recipes/masks.h"

#include <fmt/format.h>

#include <algorithm>

#include "core/statistics.h"
#include "report/plot.h"
#include "report/sections.h"

namespace lazy::repro {
namespace {

// What the figure shows at each place: Sink_k^0.3 in percent of the fixed token as long as that is the sink, of the
// first position where that is (read off the figure's source, SPEC section 4). Between the two, at "approximately 16",
// it changes.
struct MaskPlace {
  int64_t position;
  bool takes_the_sink;
  double published;
};
constexpr MaskPlace kPlaces[] = {{1, true, 73.26},  {2, true, 69.15},  {5, true, 63.23},  {9, true, 60.45},
                                 {17, false, 7.36}, {33, false, 9.28}, {65, false, 18.43}};

std::string mask_name(int64_t position) { return fmt::format("mask-at-{}", position); }

Model mask_model(const Scale& scale, int64_t position) {
  Model model{mask_name(position),
              "transformer",
              {"data.bos_per_sequence=false", fmt::format("data.mask_position={}", position)},
              Budget::ablation};
  if (scale.name == "tiny") return model;
  model.files = {scale.is_paper() ? "repro-mask-60m.toml" : "repro-mask.toml"};
  return model;
}

// A list of each seed: `field`, less `other` if there is one, times `factor`.
Groups mask_numbers(const std::vector<const Json*>& seeds, const char* field, const char* other = nullptr,
                    double factor = 1) {
  Groups groups;
  for (const Json* values : seeds) {
    auto list = values->at(field).get<std::vector<double>>();
    for (size_t n = 0; n < list.size(); ++n) {
      if (other && values->at(other).is_array())
        list[n] -= values->at(other).at(n).get<double>();
      else if (other)
        list[n] -= values->at(other).get<double>();
      list[n] *= factor;
    }
    groups.push_back(std::move(list));
  }
  return groups;
}

std::vector<Finding> judge_place(const MaskPlace& place, const std::vector<const Json*>& seeds,
                                 const std::string& obstacle) {
  const std::string at = fmt::format("Mask@{}: ", place.position), over = "texts";
  const char *sink = place.takes_the_sink ? "masked" : "first", *other = place.takes_the_sink ? "first" : "masked";
  const std::string who = place.takes_the_sink ? "the fixed token" : "the first position",
                    whom = place.takes_the_sink ? "the first position" : "the fixed token";
  const std::string paper =
      place.takes_the_sink
          ? "placed near the beginning, it attracts attention from the first position (paper, section 3.1 and Figure "
            "2a)"
          : "beyond approximately 16 the first token regains the sink (paper, section 3.1 and Figure 2a)";
  std::vector<Finding> out{
      judge_sign({at + who + " receives more than an even share of the weight of the queries behind it", paper,
                  "share of weight", over},
                 bootstrap_mean(mask_numbers(seeds, sink, "even")), Sign::above_zero)};
  if (place.position > 1) {
    out.push_back(judge_sign({at + who + " receives more than " + whom, paper, "share of weight", over},
                             bootstrap_mean(mask_numbers(seeds, sink, other)), Sign::above_zero));
  }
  out.push_back(judge_value(
      {fmt::format("{}share of layers and heads whose mean weight on {} exceeds 0.3", at, who),
       fmt::format("{} % (paper, Figure 2a)", place.published), "%", over},
      bootstrap_mean(mask_numbers(seeds, place.takes_the_sink ? "sink_masked" : "sink_first", nullptr, 100)),
      place.published, obstacle));
  return out;
}

}  // namespace

void plan_masks(Plan& plan, const Scale& scale) {
  for (const MaskPlace& place : kPlaces) {
    plan.train(mask_model(scale, place.position));
    plan.study_of(mask_name(place.position), "mask", {{"position", place.position}, {"texts", 64}, {"length", 128}});
  }
}

std::vector<Finding> judge_masks(const Conditions& c, const Results& results) {
  std::vector<Finding> out;
  for (const MaskPlace& place : kPlaces) {
    std::vector<const Json*> seeds;
    for (int64_t seed = 1; seed <= results.seeds(); ++seed) {
      if (const Json* values = results.find(training_id(mask_name(place.position), seed) + ".mask"))
        seeds.push_back(values);
    }
    if (seeds.empty()) {
      out.push_back(undecided({fmt::format("Mask@{}: who is the sink", place.position), "paper, Figure 2a", "", ""},
                              "the model was not measured"));
      continue;
    }
    for (Finding& f : judge_place(place, seeds,
                                  c.scale.is_paper() ? "" : "another model size and training length than the source's"))
      out.push_back(std::move(f));
  }
  return out;
}

std::string mask_pictures(const Results& results) {
  report::Plot plot;
  plot.label = "Mean weight that each position receives, a curve a place of the fixed token";
  plot.x_label = "position";
  plot.y_label = "mean weight received";
  plot.x_kind = report::Scale::Kind::log;
  plot.x_ticks = report::Plot::XTicks::powers;
  plot.x_low = 1, plot.x_high = 2;
  plot.y_high = 1e-9;
  std::string legend, rows;
  for (const auto& [model, values] : results.of_kind(".mask")) {
    if (model.find(".seed") != std::string::npos) continue;  // the first seed is drawn
    const auto alpha = values->at("alpha").get<std::vector<double>>();
    const int color = static_cast<int>(plot.curves.size());
    report::Curve curve{{}, fmt::format("curve s{}", color % 8), true, color % 4};
    for (size_t n = 0; n < alpha.size(); ++n) {
      curve.points.emplace_back(static_cast<double>(n + 1), alpha[n]);
      plot.y_high = std::max(plot.y_high, 1.05 * alpha[n]);
    }
    plot.x_high = std::max(plot.x_high, static_cast<double>(alpha.size()));
    legend += report::swatch(curve.css_class, curve.marker) +
              fmt::format("k = {} &nbsp; ", values->at("position").get<int64_t>());
    const auto percent = [&values = *values](const char* field) {
      return 100 * mean_of(values.at(field).get<std::vector<double>>());
    };
    rows += fmt::format(
        "<tr><th scope=\"row\">{}</th><td>{:.1f}</td><td>{:.1f}</td><td>{:.1f}</td><td>{:.1f}</td><td>{:.1f}</td></tr>",
        values->at("position").get<int64_t>(), percent("masked"), percent("first"),
        100 * values->at("even").get<double>(), percent("sink_masked"), percent("sink_first"));
    plot.curves.push_back(std::move(curve));
  }
  if (plot.curves.empty()) return "";
  const std::string table =
      "<div class=\"scroll\"><table><thead><tr><th>k</th><th>weight on position k, %</th><th>on position 1, "
      "%</th><th>an even share, %</th>"
      "<th>Sink<sub>k</sub><sup>0.3</sup>, %</th><th>Sink<sub>1</sub><sup>0.3</sup>, %</th></tr></thead><tbody>" +
      rows + "</tbody></table></div>";
  return report::section("mask", "Mask@k", "",
                         report::figure(table,
                                        "Weight of the queries behind position k, mean over layers, heads and texts; "
                                        "share of layers and heads whose mean weight on that "
                                        "position exceeds 0.3. Every row is a model of its own.") +
                             report::figure("<p class=\"legend\">" + legend + "</p>" + report::draw_responsive(plot),
                                            "Mean weight alpha that a position receives from the queries that see it, "
                                            "over layers, heads and texts. Both ends of a text are few queries."));
}

const char* const kMaskNote =
    "Mask@k (decision A11): position k of every training and measured sequence is overwritten with BOS, which stands "
    "nowhere else; a model is trained for each k. The source's models "
    "have 60M parameters and 5B tokens; at small scale they have 14M and 33M tokens, many small steps "
    "(configs/repro-mask.toml).";

}  // namespace lazy::repro
