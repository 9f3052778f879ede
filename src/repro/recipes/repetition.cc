// Figures 3 and 7: attention on natural text and on one token repeated, of given models by the positions they use, and
// of Lazy Attention beside its twin.
#include <fmt/format.h>

#include <cmath>

#include "core/statistics.h"
#include "report/heat_map.h"
#include "report/html.h"
#include "report/sections.h"
#include "repro/recipes/given_models.h"

namespace lazy::repro {
namespace {

const Json kRepetition{{"texts", 32}, {"length", 64}};

// Mean over layers, text by text.
std::vector<double> sinks_of(const Json& values, const char* input) {
  std::vector<double> out;
  for (const auto& layers : values.at(input).at("sink").get<std::vector<std::vector<double>>>())
    out.push_back(mean_of(layers));
  return out;
}

std::vector<double> less(std::vector<double> a, const std::vector<double>& b) {
  for (size_t n = 0; n < a.size(); ++n) a[n] -= b[n];
  return a;
}

// What the paper expects follows from the positions: absolute ones, and gpt-oss's sink term, keep the sink; relative
// ones lose it.
std::vector<Finding> judge_repetition(const GivenModel& studied) {
  const std::string& model = studied.name;
  const Json& values = studied.values;
  const auto natural = sinks_of(values, "natural"), repeated = sinks_of(values, "repeated");
  const double uniform = values.at("uniform");
  std::vector<double> above = repeated;
  for (double& v : above) v -= uniform;
  const bool keeps = values.at("positions") == "learned" || values.at("normalizer") == "softmax_sink";
  const std::string kind = keeps ? "the sink persists under repetition" : "repetition takes the sink away";
  std::vector<Finding> out;
  if (values.at("bos").get<bool>()) {
    out.push_back(judge_value({model + ": attention to the first position, natural text after BOS",
                               "Figure 3a shows a map, no figure", "share of weight", "texts"},
                              bootstrap_mean(sinks_of(values, "natural_bos")), 0, "no figure is published"));
  }
  out.push_back(judge_value({model + ": attention to the first position, natural text without BOS",
                             "Figure 3a shows a map, no figure", "share of weight", "texts"},
                            bootstrap_mean(natural), 0, "no figure is published"));
  out.push_back(judge_value({model + ": attention to the first position, one token repeated",
                             "Figure 3b shows a map, no figure", "share of weight", "texts"},
                            bootstrap_mean(repeated), 0, "no figure is published"));
  if (keeps) {
    out.push_back(judge_sign(
        {fmt::format("{}: {} (attention to the first position above an even spread's {:.4f})", model, kind, uniform),
         "with APE the sink persists; gpt-oss preserves it (paper, section 3.2)", "share of weight", "texts"},
        bootstrap_mean(above), ExpectedSign::positive));
  } else {
    out.push_back(
        judge_sign({fmt::format("{}: {} (repeated minus natural)", model, kind),
                    "models with RPE lose their sink entirely (paper, section 3.2)", "share of weight", "texts"},
                   bootstrap_mean(less(repeated, natural)), ExpectedSign::negative));
    // A model whose training texts all began with BOS may have its sink there alone.
    if (values.at("bos").get<bool>()) {
      out.push_back(
          judge_sign({fmt::format("{}: {} (repeated minus natural text after BOS)", model, kind),
                      "models with RPE lose their sink entirely (paper, section 3.2)", "share of weight", "texts"},
                     bootstrap_mean(less(repeated, sinks_of(values, "natural_bos"))), ExpectedSign::negative));
    }
  }
  return out;
}

std::string repetition_pictures(const Json& values, int number) {
  report::MapAxis layers{"layer", {}};
  for (const Json& map : values.at("natural").at("map"))
    layers.labels.push_back(std::to_string(map.at("layer").get<int64_t>()));
  const auto panels = [&](size_t place, size_t) {
    std::string out = "<div class=\"multiples\">";
    for (const auto& [input, title] : {std::pair{"natural_bos", "Natural text after BOS"},
                                       {"natural", "Natural text"},
                                       {"repeated", "One token repeated"}}) {
      if (input == std::string("natural_bos") && !values.at("bos").get<bool>()) continue;
      out += fmt::format(
          "<div class=\"panel\"><h4>{}</h4>{}</div>", title,
          report::draw_compact(
              {1, 0, {}, values.at(input).at("map").at(place).at("weights").get<std::vector<std::vector<double>>>()}));
    }
    return out + "</div>";
  };
  return report::figure(
      report::map_browser(fmt::format("repetition{}", number), {layers}, panels) + report::draw_weight_bar(),
      "Weights of the mean head over 32 texts, first 24 positions. Row: query. Column: key. Darker is more weight, by "
      "the "
      "square root.",
      "splittable");
}

// The measure and its pictures, of given models; Figure 7 asks them of trained ones.
const GivenModelRecipe& repetition() {
  static const GivenModelRecipe recipe{
      "fig3",
      "natural text against one token repeated, by kind of positions",
      "paper, Figure 3 and section 3.2",
      "repetition",
      kRepetition,
      {"absolute positions keep the sink under repetition, relative ones lose it", "paper, Figure 3", "", ""},
      judge_repetition,
      {"Give each model as --model NAME=DIR. The repeated token of a text is the one at its middle; without BOS, so "
       "that every position "
       "holds the same token.",
       "The paper's five models have to be at hand; Transformer-XL's attention to earlier segments is not part of this "
       "measure."},
      "maps",
      "Natural text and repetition",
      repetition_pictures};
  return recipe;
}

std::vector<Finding> judge_figure7(const Conditions& c, const Results& results) {
  const Json *lazy = results.find("lazy.repetition"), *softmax = results.find("softmax-rope150k.repetition");
  const Claim claim{"on natural text Lazy Attention puts less weight on the first position than its softmax twin",
                    "sink-free attention weights (paper, Figure 7)", "share of weight", "texts"};
  if (!lazy || !softmax) return {undecided(claim, "one of the two was not measured")};
  std::vector<Finding> out{
      judge_sign(claim, bootstrap_mean(less(sinks_of(*lazy, "natural_bos"), sinks_of(*softmax, "natural_bos"))),
                 ExpectedSign::negative)};
  Claim again = claim;
  again.text = "the same where one token is repeated";
  out.push_back(judge_sign(again, bootstrap_mean(less(sinks_of(*lazy, "repeated"), sinks_of(*softmax, "repeated"))),
                           ExpectedSign::negative));
  for (const auto& [model, values] : {std::pair{"lazy", lazy}, std::pair{"softmax-rope150k", softmax}}) {
    out.push_back(judge_value({fmt::format("{}: attention to the first position, natural text after BOS", model),
                               "Figure 7 shows maps, no figure", "share of weight", "texts"},
                              bootstrap_mean(sinks_of(*values, "natural_bos")), 0, "no figure is published"));
  }
  if (!c.models.empty()) {
    for (Finding& f : judge_given(repetition(), c, results)) out.push_back(std::move(f));
  }
  return out;
}

}  // namespace

Recipe figure3() { return given_model_recipe(repetition()); }

Recipe figure7() {
  return {"fig7",
          "the same of Lazy Attention beside its softmax twin",
          "paper, Figure 7 and section 5.2",
          [](const Conditions& c) {
            Plan plan(c);
            plan.train(lazy_model(c.scale, Budget::main))
                .train(softmax_twin(Budget::main))
                .experiment_on_trained("repetition", kRepetition);
            if (!c.models.empty()) plan.experiment("repetition", kRepetition);
            return plan.steps();
          },
          judge_figure7,
          {},
          {"Texts are of the corpus' validation split; --model adds other models."},
          [](const Results& results) { return draw_given(repetition(), results); }};
}

}  // namespace lazy::repro
