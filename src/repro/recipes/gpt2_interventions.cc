// Figures 3 and 7 to 13 of the GPT-2 study: five interventions, their controls, and what each leaves of the sink.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "core/statistics.h"
#include "core/text.h"
#include "report/map_browser.h"
#include "report/scale.h"
#include "report/sections.h"
#include "repro/recipes/studied.h"

namespace lazy::repro {
namespace {

using Texts = std::vector<std::vector<double>>;  // [text][layer]

const std::pair<const char*, const char*> kConditions[] = {{"none", "no intervention"},
                                                           {"1", "1: b_Q = 0"},
                                                           {"2", "2: EPE_2 in the place of EPE_1"},
                                                           {"3", "3: EPE_1 and EPE_2 change places"},
                                                           {"4", "4: the first token's embedding = 0"},
                                                           {"5", "5: columns of W_k at the massive coordinates = 0"},
                                                           {"2'", "2': p_2 in the place of p_1 at the input"},
                                                           {"3'", "3': p_1 and p_2 change places at the input"}};

std::vector<double> by_text(const Json& condition, const char* field) {
  std::vector<double> out;
  for (const auto& layers : condition.at(field).get<Texts>()) out.push_back(mean_of(layers));
  return out;
}

// a - factor b, text by text.
std::vector<double> minus(const std::vector<double>& a, const std::vector<double>& b, double factor = 1) {
  std::vector<double> out;
  for (size_t n = 0; n < std::min(a.size(), b.size()); ++n) out.push_back(a[n] - factor * b[n]);
  return out;
}

// The random pairs' mean, text by text; as many texts as every pair saw.
std::vector<double> control_by_text(const Json& control) {
  std::vector<double> sum;
  for (const Json& pair : control) {
    const auto one = by_text(pair, "first");
    sum.resize(sum.empty() ? one.size() : std::min(sum.size(), one.size()));
    for (size_t n = 0; n < sum.size(); ++n) sum[n] += one[n] / static_cast<double>(control.size());
  }
  return sum;
}

std::vector<Finding> judge_interventions(const StudiedModel& model) {
  const Json &values = model.values, &all = values.at("conditions");
  const auto first = [&](const char* condition) { return by_text(all.at(condition), "first"); };
  const auto second = [&](const char* condition) { return by_text(all.at(condition), "second"); };
  const char *unit = "share of weight", *over = "texts";
  std::vector<Finding> out;
  const auto sign = [&](const std::string& text, const char* paper, const std::vector<double>& difference,
                        Sign published) {
    out.push_back(judge_sign({model.of + text, paper, unit, over}, bootstrap_mean(difference), published));
  };
  const auto none = first("none");
  sign("intervention 1 (b_Q = 0): the first position loses more than half of its attention (with - half of without)",
       "the sink substantially diminishes (GPT-2 study, Figure 3b)", minus(first("1"), none, 0.5), Sign::below_zero);
  sign(
      "intervention 2 (EPE_2 for EPE_1 after the first layer): the first position loses more than half of its "
      "attention",
      "the first-position sink disappears (GPT-2 study, Figure 3c)", minus(first("2"), none, 0.5), Sign::below_zero);
  sign("intervention 3 (EPE_1 moves to position 2): position 2 gains attention",
       "a strong sink forms at position 2 (GPT-2 study, Figure 3d)", minus(second("3"), second("none")),
       Sign::above_zero);
  sign("intervention 3: position 2 then receives more than position 1",
       "a strong sink forms at position 2 (GPT-2 study, Figure 3d)", minus(second("3"), first("3")), Sign::above_zero);
  sign("intervention 4 (the first token's embedding = 0): the first position keeps more than half of its attention",
       "the sink persists (GPT-2 study, Figure 3e)", minus(first("4"), none, 0.5), Sign::above_zero);
  sign(
      "intervention 5 (columns of W_k at the massive coordinates = 0): the first position loses more than half of its "
      "attention",
      "substantially reduces the sink (GPT-2 study, Figure 3f)", minus(first("5"), none, 0.5), Sign::below_zero);
  const auto control = control_by_text(values.at("control"));
  sign(
      fmt::format("control of 5 ({} random pairs of columns): the first position keeps more than half of its attention",
                  values.at("control").size()),
      "the sink remains (GPT-2 study, Figure 3g)", minus(control, none, 0.5), Sign::above_zero);
  sign("intervention 5 leaves less than its control",
       "only the prior case substantially reduces the sink (GPT-2 study, section 4.2.4)", minus(first("5"), control),
       Sign::below_zero);
  sign("2' (p_2 for p_1 at the input): the first position loses more than half of its attention",
       "not published: another site of 2", minus(first("2'"), none, 0.5), Sign::below_zero);
  sign("3' (p_1 and p_2 change places at the input): position 2 then receives more than position 1",
       "not published: another site of 3", minus(second("3'"), first("3'")), Sign::above_zero);
  return out;
}

std::string shares_table(const Json& values) {
  const auto cell = [](double share) { return fmt::format("<td>{:.1f}</td>", 100 * share); };
  std::string rows;
  const auto row = [&](const std::string& title, const Json& condition) {
    rows += "<tr><th scope=\"row\">" + html_escape(title) + "</th>" + cell(mean_of(by_text(condition, "first"))) +
            cell(mean_of(by_text(condition, "second"))) + cell(mean_of(by_text(condition, "sink"))) + "</tr>";
  };
  for (const auto& [key, title] : kConditions) row(title, values.at("conditions").at(key));
  rows += "<tr><th scope=\"row\">control of 5: random columns</th>" +
          cell(mean_of(control_by_text(values.at("control")))) + "<td></td><td></td></tr>";
  return "<div class=\"scroll\"><table><thead><tr><th></th><th>attention to position 1, %</th><th>to position 2, "
         "%</th><th>Sink<sub>1</sub><sup>0.3</sup>, %</th></tr></thead><tbody>" +
         rows + "</tbody></table></div>";
}

std::string by_layer_picture(const Json& values) {
  report::HeatMap map;
  map.label = "Attention to the first position by intervention and layer";
  map.row_name = "intervention";
  map.column_name = "layer";
  double high = 0;
  for (const auto& [key, title] : kConditions) {
    const auto texts = values.at("conditions").at(key).at("first").get<Texts>();
    std::vector<double> layers(texts.front().size());
    for (const auto& text : texts) {
      for (size_t l = 0; l < layers.size(); ++l) layers[l] += text[l] / static_cast<double>(texts.size());
    }
    high = std::max(high, *std::max_element(layers.begin(), layers.end()));
    map.row_labels.push_back(key);
    map.values.push_back(layers);
  }
  map.high = report::round_up(std::max(high, 1e-6));
  std::string single;
  if (values.contains("single")) {
    report::HeatMap one = map;
    one.label = "The same with one layer changed at a time: what that layer does";
    one.values.clear();
    one.row_labels.clear();
    for (const auto& [key, layers] : values.at("single").items()) {
      one.row_labels.push_back(key);
      one.values.emplace_back();
      // Moving the positional signal has no place before the second layer.
      if (layers.size() < map.values.front().size()) one.values.back().push_back(std::nan(""));
      for (const Json& texts : layers) one.values.back().push_back(mean_of(texts.get<std::vector<double>>()));
    }
    single = "<div class=\"panel\"><h4>One layer at a time</h4>" + report::draw(one) + "</div>";
  }
  return "<div class=\"multiples\"><div class=\"panel\"><h4>All layers at once</h4>" + report::draw(map) + "</div>" +
         single + "</div>" + report::draw_color_bar(map.high);
}

std::string intervention_pictures(const Json& values, int number) {
  const auto panels = [&](size_t layer, size_t) {
    std::string out = "<div class=\"multiples\">";
    const auto panel = [&](const std::string& title, const Json& maps) {
      const report::AttentionMap map{
          static_cast<int>(layer) + 1, 0, {}, maps.at(layer).get<std::vector<std::vector<double>>>()};
      out += "<div class=\"panel\"><h4>" + html_escape(title) + "</h4>" + report::draw_compact(map) + "</div>";
    };
    for (const auto& [key, title] : kConditions) panel(title, values.at("conditions").at(key).at("map"));
    panel("control of 5: one random pair", values.at("control").at(0).at("map"));
    return out + "</div>";
  };
  return report::figure(shares_table(values), "Means over heads, layers, later queries and texts.") +
         report::figure(by_layer_picture(values),
                        "Attention to the first position in percent, by intervention (row) and layer (column).") +
         report::figure(report::map_browser(fmt::format("maps{}", number),
                                            {report::numbered("layer", values.at("layers").get<size_t>())}, panels) +
                            report::draw_weight_bar(),
                        "Weights of the mean head over all texts, first 32 positions. Row: query. Column: key. Darker "
                        "is more weight, by the "
                        "square root.",
                        "splittable");
}

}  // namespace

Recipe gpt2_interventions() {
  return studied_recipe(
      {"gpt2-interventions",
       "five interventions on the sink of GPT-2, with controls, and one layer at a time",
       "GPT-2 study, Figures 3 and 7 to 13",
       "interventions",
       {{"texts", 100}, {"few_texts", 20}, {"length", 64}, {"random_pairs", 20}},
       {"the five interventions act as claimed", "GPT-2 study, section 4.2.4", "", ""},
       judge_interventions,
       {"Attention to a position: mean over heads, layers and all later queries of 64 tokens, BOS first (decision "
        "A13).",
        "\"Substantially diminishes\" and \"disappears\" are tested as a loss of more than half, \"persists\" as "
        "keeping more than half.",
        "Interventions 2 and 3 add EPE_2 - EPE_1 (the literal reading) to the residual stream after the first layer; "
        "2' "
        "and 3' exchange learned positions at the input.",
        "One layer at a time: 1 and 5 change that layer's weights, 2 and 3 the stream before it; the figure is that "
        "layer's own attention, over 20 texts.",
        "The control's first pair sees all texts, the others 20; pairs are drawn outside the ten largest coordinates "
        "of "
        "|EPE_1|."},
       "interventions",
       "What each intervention leaves",
       intervention_pictures});
}

}  // namespace lazy::repro
