// Figures 1 and 4 of the GPT-2 study: Delta_j, what the query bias adds to every score on position j, at the first
// position and at all others; and decision A21's further targets.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "core/statistics.h"
#include "report/plot.h"
#include "report/sections.h"
#include "repro/recipes/studied.h"

namespace lazy::repro {
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

std::vector<Finding> judge_delta(const StudiedModel& model) {
  const auto& [name, of, values] = model;
  std::vector<Finding> out;
  const Json& layers = values.at("by_layer");
  Doubles beyond;
  for (const Json& layer : layers)
    beyond.push_back(mean_of(difference_by_text(layer)) > 2 * layer.at("others_std").get<double>() ? 0.5 : -0.5);
  out.push_back(judge_sign({of + kOutlier.text, kOutlier.paper, kOutlier.unit, kOutlier.over}, bootstrap_mean(beyond),
                           Sign::above_zero));
  const size_t tenth = std::min<size_t>(9, layers.size() - 1);
  const bool gpt2 = layers.size() == 12 && values.at("heads") == 12;
  const std::string obstacle = gpt2 ? "the published figure is read off a histogram" : "not of gpt2's shape";
  const Json& layer = layers.at(tenth);
  const std::string place = fmt::format("{}layer {}: ", of, tenth + 1);
  out.push_back(judge_sign({place + "Delta_1 exceeds the mean of the other positions",
                            "about 100 against about -140 (GPT-2 study, Figure 1)", "", "texts"},
                           bootstrap_mean(difference_by_text(layer)), Sign::above_zero));
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
                           bootstrap_mean(less), Sign::below_zero));
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
  return studied_recipe(
      {"gpt2-delta",
       "Delta_j = gamma . x_j at the first position and the others",
       "GPT-2 study, Figures 1 and 4",
       "delta",
       {{"texts", 100}, {"length", 64}},
       kOutlier,
       judge_delta,
       {"100 stretches of --text of 64 tokens, BOS first where the tokenizer has one (decision A13).",
        "Delta is summed over heads and undivided by the square root of the head size; by head it is in the "
        "record (first_by_head, others_by_head)."},
       "delta",
       "What the query bias adds",
       delta_pictures});
}

}  // namespace lazy::repro
