// Figure 2 of the paper: a fixed token at position k (Mask@k), and variances by position.
#include "repro/recipe.h"

#include <fmt/format.h>

#include <algorithm>

#include "core/statistics.h"
#include "report/html.h"
#include "report/plot.h"
#include "report/sections.h"
#include "repro/recipe.h"

namespace lazy::repro {

namespace {

// The published values: Sink_k^0.3 in percent, of the fixed token for small k, of the first position beyond
// "approximately 16", where it becomes the sink again.
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

// One list per seed: (`field` - `other`) * `factor`.
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
                 bootstrap_mean(mask_numbers(seeds, sink, "even")), ExpectedSign::positive)};
  if (place.position > 1) {
    out.push_back(judge_sign({at + who + " receives more than " + whom, paper, "share of weight", over},
                             bootstrap_mean(mask_numbers(seeds, sink, other)), ExpectedSign::positive));
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
    plan.experiment_on(mask_name(place.position), "mask",
                       {{"position", place.position}, {"texts", 64}, {"length", 128}});
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
  std::string legend;
  report::Table table{.column_scope = false,
                      .columns = {{"k"},
                                  {"weight on position k, %"},
                                  {"on position 1, %"},
                                  {"an even share, %"},
                                  {"Sink<sub>k</sub><sup>0.3</sup>, %"},
                                  {"Sink<sub>1</sub><sup>0.3</sup>, %"}}};
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
      return fmt::format("{:.1f}", 100 * mean_of(values.at(field).get<std::vector<double>>()));
    };
    table.rows.push_back(
        {std::to_string(values->at("position").get<int64_t>()),
         {percent("masked"), percent("first"), fmt::format("{:.1f}", 100 * values->at("even").get<double>()),
          percent("sink_masked"), percent("sink_first")}});
    plot.curves.push_back(std::move(curve));
  }
  if (plot.curves.empty()) return "";
  return report::section("mask", "Mask@k", "",
                         report::figure(report::to_html(table),
                                        "Weight of the queries behind position k, mean over layers, heads and texts; "
                                        "share of layers and heads whose mean weight on that "
                                        "position exceeds 0.3. Every row is a model of its own.") +
                             report::figure("<p class=\"legend\">" + legend + "</p>" + report::draw_responsive(plot),
                                            "Mean weight alpha that a position receives from the queries that see it, "
                                            "over layers, heads and texts. Both ends of a text are few queries."));
}

const char* const kMaskNote =
    "Mask@k: position k of every training and measured sequence is overwritten with BOS, which stands "
    "nowhere else; a model is trained for each k. The source's models "
    "have 60M parameters and 5B tokens; at small scale they have 14M and 33M tokens, many small steps "
    "(configs/repro-mask.toml).";

// Figure 2: Mask@k (part a), and the variance of hidden states and values by position, of softmax attention and of its
// sliding-window twin (parts b and c).

namespace {

constexpr const char* kWindowed = "softmax-window";

// A sixteenth of the context: 16 of 256 tokens at tiny scale.
Model windowed_model(const Scale& scale) {
  Model model = softmax_model(Budget::ablation);
  model.name = kWindowed;
  model.overrides.push_back(fmt::format("model.window_size={}", scale.context(Budget::ablation) / 16));
  return model;
}

std::vector<Finding> judge_variances(const Conditions&, const Results& results) {
  const Json *softmax = results.find("softmax.spread"), *windowed = results.find(std::string(kWindowed) + ".spread");
  const Claim states{
      "softmax: the first token's hidden-state variance exceeds the others' (ratio less 1, mean over layers)",
      "much greater than that of other tokens (paper, section 3.1 and Figure 2b)", "relative", "texts"};
  if (!softmax || !windowed) return {undecided(states, "the models were not measured")};
  const auto of = [](const Json& values, const char* field) { return values.at(field).get<std::vector<double>>(); };
  const auto difference = [&](const char* field) {
    auto out = of(*softmax, field);
    const auto other = of(*windowed, field);
    for (size_t n = 0; n < out.size(); ++n) out[n] -= other[n];
    return out;
  };
  return {
      judge_sign(states, bootstrap_mean(of(*softmax, "residual")), ExpectedSign::positive),
      judge_sign(
          {"softmax: the first token's value variance is below the others' (ratio less 1, mean over layers and heads)",
           "much smaller (paper, section 3.1)", "relative", "texts"},
          bootstrap_mean(of(*softmax, "values")), ExpectedSign::negative),
      judge_sign({"the first token's hidden-state variance stands out more under full attention than under a sliding "
                  "window (difference of the ratios)",
                  "when attention sink exists (paper, Figures 2b and 2c)", "relative", "texts"},
                 bootstrap_mean(difference("residual")), ExpectedSign::positive),
      judge_sign({"full attention puts more weight on the first position than a sliding window",
                  "the sink phenomenon (paper, Figures 2b and 2c)", "share of weight", "texts"},
                 bootstrap_mean(difference("sink")), ExpectedSign::positive)};
}

std::string variance_plot(const Json& by_layer, const char* what) {
  report::Plot plot;
  plot.label = fmt::format("Variance of {} by position, a curve a layer", what);
  plot.x_label = "position";
  plot.y_label = "variance";
  plot.y_kind = report::Scale::Kind::log;
  plot.x_low = 1;
  plot.y_low = 1e300, plot.y_high = 1e-300;
  for (size_t layer = 0; layer < by_layer.size(); ++layer) {
    report::Curve curve{{}, fmt::format("curve thin s{}", layer % 8), true, -1};
    const auto values = by_layer.at(layer).get<std::vector<double>>();
    for (size_t n = 0; n < values.size(); ++n) {
      if (values[n] <= 0) continue;
      curve.points.emplace_back(static_cast<double>(n + 1), values[n]);
      plot.y_low = std::min(plot.y_low, values[n]), plot.y_high = std::max(plot.y_high, values[n]);
    }
    plot.x_high = std::max(2.0, static_cast<double>(values.size()));
    plot.curves.push_back(std::move(curve));
  }
  plot.y_low /= 1.2, plot.y_high *= 1.2;
  return report::draw(plot, 296, 260, "small");
}

std::string variance_pictures(const Results& results) {
  std::string body;
  for (const auto& [model, values] : results.of_kind(".spread")) {
    std::string panels;
    for (const auto& [field, title] : {std::pair{"residual", "hidden states"}, {"values", "values"}}) {
      panels += fmt::format("<div class=\"panel\"><h4>{}: {}</h4>{}</div>", model, title,
                            variance_plot(values->at("by_position").at(field), title));
    }
    body +=
        report::figure("<div class=\"multiples\">" + panels + "</div>",
                       "Variance over a vector's entries, mean over texts (and heads), a curve a layer; logarithmic.");
  }
  return body.empty() ? "" : report::section("variance", "Variance by position", "", body);
}

}  // namespace

Recipe figure2a() {
  return {"fig2a",
          "where the sink is when one token always stands at position k (Mask@k)",
          "paper, Figure 2 (a) and section 3.1",
          [](const Conditions& c) {
            Plan plan(c);
            plan_masks(plan, c.scale);
            return plan.steps();
          },
          judge_masks,
          {},
          {kMaskNote},
          mask_pictures};
}

Recipe figure2() {
  return {"fig2",
          "Mask@k; variance of hidden states and values by position, full attention and a sliding window",
          "paper, Figure 2 and section 3.1",
          [](const Conditions& c) {
            Plan plan(c);
            plan.train(softmax_model(Budget::ablation))
                .train(windowed_model(c.scale))
                .experiment_on_trained("spread", {{"texts", 32}, {"length", 64}});
            plan_masks(plan, c.scale);
            return plan.steps();
          },
          [](const Conditions& c, const Results& results) {
            auto findings = judge_masks(c, results);
            for (Finding& f : judge_variances(c, results)) findings.push_back(std::move(f));
            return findings;
          },
          {},
          {kMaskNote, "The sliding window is a sixteenth of the context; the paper does not print its own."},
          [](const Results& results) { return mask_pictures(results) + variance_pictures(results); }};
}

}  // namespace lazy::repro
