// The GPT-2 study on texts: Delta_j, and five interventions on the sink.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "core/statistics.h"
#include "core/text.h"
#include "report/heat_map.h"
#include "report/html.h"
#include "report/plot.h"
#include "report/sections.h"
#include "repro/recipes/given_models.h"

namespace lazy::repro {

// Figures 1 and 4 of the GPT-2 study: Delta_j, what the query bias adds to every score on position j, at the first
// position and at all others.

namespace {

using Doubles = std::vector<double>;

Doubles difference_by_text(const Json& layer) {
  const auto first = layer.at("first").get<Doubles>(), others = layer.at("others_mean").get<Doubles>();
  Doubles out;
  for (size_t n = 0; n < first.size(); ++n) out.push_back(first[n] - others[n]);
  return out;
}

const Claim kOutlier{
    "Delta_1 lies more than two standard deviations of the other positions above their mean, as a share of "
    "layers less a half",
    "conspicuously large in most deep layers (GPT-2 study, section 4.1)", "share of layers - 1/2", "layers"};

std::vector<Finding> judge_delta(const GivenModel& model) {
  const auto& [name, of, values] = model;
  std::vector<Finding> out;
  const Json& layers = values.at("by_layer");
  Doubles beyond;
  for (const Json& layer : layers)
    beyond.push_back(mean_of(difference_by_text(layer)) > 2 * layer.at("others_std").get<double>() ? 0.5 : -0.5);
  out.push_back(judge_sign({of + kOutlier.text, kOutlier.paper, kOutlier.unit, kOutlier.over}, bootstrap_mean(beyond),
                           ExpectedSign::positive));
  const size_t tenth = std::min<size_t>(9, layers.size() - 1);
  const bool gpt2 = layers.size() == 12 && values.at("heads") == 12;
  const std::string obstacle = gpt2 ? "the published figure is read off a histogram" : "not of gpt2's shape";
  const Json& layer = layers.at(tenth);
  const std::string place = fmt::format("{}layer {}: ", of, tenth + 1);
  out.push_back(judge_sign({place + "Delta_1 exceeds the mean of the other positions",
                            "about 100 against about -140 (GPT-2 study, Figure 1)", "", "texts"},
                           bootstrap_mean(difference_by_text(layer)), ExpectedSign::positive));
  out.push_back(judge_value({place + "Delta_1", "centers at about 100 (GPT-2 study, Figure 1)", "", "texts"},
                            bootstrap_mean(layer.at("first").get<Doubles>()), 100, obstacle));
  out.push_back(judge_value(
      {place + "mean of Delta_j over the other positions", "center at about -140 (GPT-2 study, Figure 1)", "", "texts"},
      bootstrap_mean(layer.at("others_mean").get<Doubles>()), -140, obstacle));
  // Half of what the whole first input reaches would be alignment still.
  const auto whole = layer.at("cosine_input").get<Doubles>(), rest = layer.at("cosine_without_epe").get<Doubles>();
  Doubles less;
  for (size_t n = 0; n < whole.size(); ++n) less.push_back(std::abs(rest[n]) - std::abs(whole[n]));
  out.push_back(judge_sign({place + "without EPE_1 the first hidden state aligns less with the query bias: |cos(b_Q, "
                                    "W_k (h_1 - EPE_1))| - |cos(b_Q, W_k x_1)|",
                            "expected unaligned (GPT-2 study, section 4.2.2, to be done)", "cosine", "texts"},
                           bootstrap_mean(less), ExpectedSign::negative));
  return out;
}

std::string histogram(const Json& layer, size_t number) {
  const Json& h = layer.at("histogram");
  const double low = h.at("low"), high = h.at("high");
  report::Plot plot;
  plot.label = fmt::format("Layer {}: distribution of Delta_j at the first position and at all others", number);
  plot.x_label = "Delta";
  plot.y_label = "share";
  plot.x_low = low;
  plot.x_high = high > low ? high : low + 1;
  int color = 0;
  for (const char* which : {"others", "first"}) {
    const auto counts = h.at(which).get<Doubles>();
    double all = 0, most = 0;
    for (const double n : counts) all += n;
    report::Curve curve{{}, fmt::format("curve s{}", color), true, -1};
    const double width = (high - low) / static_cast<double>(counts.size());
    for (size_t i = 0; i < counts.size(); ++i) {
      const double share = all > 0 ? counts[i] / all : 0, x = low + width * static_cast<double>(i);
      curve.points.insert(curve.points.end(), {{x, share}, {x + width, share}});
      most = std::max(most, share);
    }
    plot.y_high = std::max(color == 0 ? 0.01 : plot.y_high, most * 1.05);
    plot.curves.push_back(std::move(curve));
    ++color;
  }
  return fmt::format("<div class=\"panel\"><h4>Layer {}</h4>{}</div>", number, report::draw(plot, 296, 200, "small"));
}

std::string delta_pictures(const Json& values, int) {
  std::string panels;
  for (size_t l = 0; l < values.at("by_layer").size(); ++l) panels += histogram(values.at("by_layer").at(l), l + 1);
  return report::figure(
      "<p class=\"legend\">" + report::swatch("curve s1", -1) + "the first position &nbsp; " +
          report::swatch("curve s0", -1) + "all others</p><div class=\"multiples\">" + panels + "</div>",
      fmt::format("Distribution of Delta_j = gamma · x_j over {} texts, summed over heads and undivided by the "
                  "square root of the head size.",
                  values.at("texts").get<int64_t>()));
}

}  // namespace

Recipe gpt2_delta() {
  return given_model_recipe(
      {"gpt2-delta",
       "Delta_j = gamma . x_j at the first position and the others",
       "GPT-2 study, Figures 1 and 4",
       "delta",
       {{"texts", 100}, {"length", 64}},
       kOutlier,
       judge_delta,
       {"100 stretches of --text of 64 tokens, BOS first where the tokenizer has one.",
        "Delta is summed over heads and undivided by the square root of the head size; by head it is in the "
        "record (first_by_head, others_by_head)."},
       "delta",
       "What the query bias adds",
       delta_pictures});
}

// Figures 3 and 7 to 13 of the GPT-2 study: five interventions, their controls, and what each leaves of the sink.

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

// Mean over the random pairs for each text that all pairs were measured on.
std::vector<double> control_by_text(const Json& control) {
  std::vector<double> sum;
  for (const Json& pair : control) {
    const auto one = by_text(pair, "first");
    sum.resize(sum.empty() ? one.size() : std::min(sum.size(), one.size()));
    for (size_t n = 0; n < sum.size(); ++n) sum[n] += one[n] / static_cast<double>(control.size());
  }
  return sum;
}

std::vector<Finding> judge_interventions(const GivenModel& model) {
  const Json &values = model.values, &all = values.at("conditions");
  const auto first = [&](const char* condition) { return by_text(all.at(condition), "first"); };
  const auto second = [&](const char* condition) { return by_text(all.at(condition), "second"); };
  const char *unit = "share of weight", *over = "texts";
  std::vector<Finding> out;
  const auto sign = [&](const std::string& text, const char* paper, const std::vector<double>& difference,
                        ExpectedSign published) {
    out.push_back(judge_sign({model.of + text, paper, unit, over}, bootstrap_mean(difference), published));
  };
  const auto none = first("none");
  sign("intervention 1 (b_Q = 0): the first position loses more than half of its attention (with - half of without)",
       "the sink substantially diminishes (GPT-2 study, Figure 3b)", minus(first("1"), none, 0.5),
       ExpectedSign::negative);
  sign(
      "intervention 2 (EPE_2 for EPE_1 after the first layer): the first position loses more than half of its "
      "attention",
      "the first-position sink disappears (GPT-2 study, Figure 3c)", minus(first("2"), none, 0.5),
      ExpectedSign::negative);
  sign("intervention 3 (EPE_1 moves to position 2): position 2 gains attention",
       "a strong sink forms at position 2 (GPT-2 study, Figure 3d)", minus(second("3"), second("none")),
       ExpectedSign::positive);
  sign("intervention 3: position 2 then receives more than position 1",
       "a strong sink forms at position 2 (GPT-2 study, Figure 3d)", minus(second("3"), first("3")),
       ExpectedSign::positive);
  sign("intervention 4 (the first token's embedding = 0): the first position keeps more than half of its attention",
       "the sink persists (GPT-2 study, Figure 3e)", minus(first("4"), none, 0.5), ExpectedSign::positive);
  sign(
      "intervention 5 (columns of W_k at the massive coordinates = 0): the first position loses more than half of its "
      "attention",
      "substantially reduces the sink (GPT-2 study, Figure 3f)", minus(first("5"), none, 0.5), ExpectedSign::negative);
  const auto control = control_by_text(values.at("control"));
  sign(
      fmt::format("control of 5 ({} random pairs of columns): the first position keeps more than half of its attention",
                  values.at("control").size()),
      "the sink remains (GPT-2 study, Figure 3g)", minus(control, none, 0.5), ExpectedSign::positive);
  sign("intervention 5 leaves less than its control",
       "only the prior case substantially reduces the sink (GPT-2 study, section 4.2.4)", minus(first("5"), control),
       ExpectedSign::negative);
  sign("2' (p_2 for p_1 at the input): the first position loses more than half of its attention",
       "not published: another site of 2", minus(first("2'"), none, 0.5), ExpectedSign::negative);
  sign("3' (p_1 and p_2 change places at the input): position 2 then receives more than position 1",
       "not published: another site of 3", minus(second("3'"), first("3'")), ExpectedSign::positive);
  return out;
}

std::string shares_table(const Json& values) {
  report::Table table{
      .column_scope = false,
      .columns = {{""}, {"attention to position 1, %"}, {"to position 2, %"}, {"Sink<sub>1</sub><sup>0.3</sup>, %"}}};
  const auto percent = [](const std::vector<double>& shares) { return fmt::format("{:.1f}", 100 * mean_of(shares)); };
  for (const auto& [key, title] : kConditions) {
    const Json& condition = values.at("conditions").at(key);
    table.rows.push_back({html_escape(title),
                          {percent(by_text(condition, "first")), percent(by_text(condition, "second")),
                           percent(by_text(condition, "sink"))}});
  }
  table.rows.push_back(
      {"control of 5: random columns", {percent(control_by_text(values.at("control"))), std::string(), std::string()}});
  return report::to_html(table);
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
      // Interventions 2 and 3 start at the second layer.
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
  return given_model_recipe(
      {"gpt2-interventions",
       "five interventions on the sink of GPT-2, with controls, and one layer at a time",
       "GPT-2 study, Figures 3 and 7 to 13",
       "interventions",
       {{"texts", 100}, {"few_texts", 20}, {"length", 64}, {"random_pairs", 20}},
       {"the five interventions act as claimed", "GPT-2 study, section 4.2.4", "", ""},
       judge_interventions,
       {"Attention to a position: mean over heads, layers and all later queries of 64 tokens, BOS first."
        "",
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
