// Figure 2: Mask@k (part a), and the variance of hidden states and values by position, of softmax attention and of its
// sliding-window twin (parts b and c).
#include <fmt/format.h>

#include <algorithm>

#include "report/plot.h"
#include "report/sections.h"
#include "repro/recipe.h"
#include "repro/recipes/masks.h"

namespace lazy::repro {
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
      judge_sign(states, bootstrap_mean(of(*softmax, "residual")), Sign::above_zero),
      judge_sign(
          {"softmax: the first token's value variance is below the others' (ratio less 1, mean over layers and heads)",
           "much smaller (paper, section 3.1)", "relative", "texts"},
          bootstrap_mean(of(*softmax, "values")), Sign::below_zero),
      judge_sign({"the first token's hidden-state variance stands out more under full attention than under a sliding "
                  "window (difference of the ratios)",
                  "when attention sink exists (paper, Figures 2b and 2c)", "relative", "texts"},
                 bootstrap_mean(difference("residual")), Sign::above_zero),
      judge_sign({"full attention puts more weight on the first position than a sliding window",
                  "the sink phenomenon (paper, Figures 2b and 2c)", "share of weight", "texts"},
                 bootstrap_mean(difference("sink")), Sign::above_zero)};
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
                .study_trained("spread", {{"texts", 32}, {"length", 64}});
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
