// Figures 2, 5 and 6 of the GPT-2 study: EPE_1's massive coordinates, and how W_k EPE_j aligns with the query bias.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "core/statistics.h"
#include "report/plot.h"
#include "report/sections.h"
#include "repro/recipes/studied.h"

namespace lazy::repro {
namespace {

const Claim kAligned{
    "W_k EPE_1 aligns with b_Q more than the other positions do (cosine at position 1 minus the others' mean, by "
    "layer)",
    "strong alignment in deep layers, others near zero (GPT-2 study, section 4.2.2)", "cosine", "layers"};

std::vector<Finding> judge_positions(const StudiedModel& model) {
  const auto& [name, of, values] = model;
  std::vector<Finding> out;
  const std::string obstacle = is_gpt2_small(values) ? "" : "not of gpt2's shape (12 layers of width 768)";
  for (const auto reading : sinks::kEveryReading) {
    const Json& layers = values.at(sinks::name(reading)).at("cosines");
    std::vector<double> gap;
    for (const Json& layer : layers)
      gap.push_back(layer.at("first").get<double>() - layer.at("others_mean").get<double>());
    Claim claim = kAligned;
    claim.text = of + claim.text + fmt::format("; EPE as {}", words(reading));
    out.push_back(judge_sign(claim, bootstrap_mean(gap), Sign::above_zero));
    const size_t tenth = std::min<size_t>(9, layers.size() - 1);
    // The figure shows about 0.7: one digit.
    out.push_back(
        judge_printed({fmt::format("{}layer {}: cos(b_Q, W_k EPE_1), EPE as {}", of, tenth + 1, words(reading)),
                       "about 0.7 (GPT-2 study, Figure 2)", "cosine", "model"},
                      layers.at(tenth).at("first").get<double>(), "0.7", obstacle));
    const auto others = layers.at(tenth).at("others").get<std::vector<double>>();
    out.push_back(judge_value(
        {fmt::format("{}layer {}: mean cosine of the other positions, EPE as {}", of, tenth + 1, words(reading)),
         "cluster near zero (GPT-2 study, Figure 2)", "cosine", "positions"},
        bootstrap_mean(others), 0, obstacle.empty() ? "no figure is printed" : obstacle));
    const Json& top = values.at(sinks::name(reading)).at("top");
    const int64_t a = top.at(0), b = top.at(1);
    out.push_back(judge_count(
        {fmt::format("{}how many of the two largest coordinates of |EPE_1| ({}; here {} and {}) are 138 and 447", of,
                     words(reading), std::min(a, b), std::max(a, b)),
         "138 and 447 (GPT-2 study, section 4.2.3)", "coordinates", "model"},
        double((a == 138 || b == 138) + (a == 447 || b == 447)), 2, obstacle));
  }
  return out;
}

std::string vector_plot(const Json& first) {
  report::Plot plot;
  plot.label = "Values of EPE_1 by coordinate";
  plot.x_label = "coordinate";
  plot.y_label = "EPE_1";
  plot.x_high = static_cast<double>(first.size() - 1);
  plot.y_low = plot.y_high = 0;
  report::Curve curve{{}, "curve thin s0", true, -1};
  for (size_t i = 0; i < first.size(); ++i) {
    const double v = first.at(i);
    curve.points.emplace_back(static_cast<double>(i), v);
    plot.y_low = std::min(plot.y_low, 1.05 * v);
    plot.y_high = std::max(plot.y_high, 1.05 * v);
  }
  plot.curves.push_back(std::move(curve));
  return report::draw_responsive(plot);
}

std::string cosine_plot(const Json& layers) {
  report::Plot plot;
  plot.label = "cos(b_Q, W_k EPE_j) by layer: the first position, and the others' mean and standard deviation";
  plot.x_label = "layer";
  plot.y_label = "cosine";
  plot.x_ticks = report::Plot::XTicks::integers;
  plot.x_low = 1;
  plot.x_high = std::max(2.0, static_cast<double>(layers.size()));
  plot.y_low = -1;
  std::vector<report::Curve> curves{{{}, "curve s1", true, 0},
                                    {{}, "curve s0", true, 1},
                                    {{}, "curve faint s0", true, -1},
                                    {{}, "curve faint s0", true, -1}};
  for (size_t l = 0; l < layers.size(); ++l) {
    const double x = static_cast<double>(l + 1), mean = layers.at(l).at("others_mean"),
                 spread = layers.at(l).at("others_std");
    curves[0].points.emplace_back(x, layers.at(l).at("first").get<double>());
    curves[1].points.emplace_back(x, mean);
    curves[2].points.emplace_back(x, std::max(-1.0, mean - spread));
    curves[3].points.emplace_back(x, std::min(1.0, mean + spread));
  }
  plot.curves = std::move(curves);
  return "<p class=\"legend\">" + report::swatch("curve s1", 0) + "EPE_1 &nbsp; " + report::swatch("curve s0", 1) +
         "the other positions, with their standard deviation</p>" + report::draw_responsive(plot);
}

std::string position_pictures(const Json& values, int) {
  std::string body;
  for (const auto reading : sinks::kEveryReading) {
    const Json& v = values.at(sinks::name(reading));
    body += report::figure(
        vector_plot(v.at("first")),
        fmt::format("EPE_1, read as {}. Norm {:.3g}; median of the other positions {:.3g}.", words(reading),
                    v.at("norm_first").get<double>(), v.at("norm_others").get<double>()));
    body +=
        report::figure(cosine_plot(v.at("cosines")),
                       fmt::format("Alignment of W_k EPE_j with b_Q, layer by layer; EPE read as {}.", words(reading)));
  }
  return body;
}

}  // namespace

Recipe gpt2_positions() {
  return studied_recipe({"gpt2-epe",
                         "effective positional encodings: massive coordinates, alignment with the query bias",
                         "GPT-2 study, Figures 2, 5 and 6",
                         "positions",
                         Json::object(),
                         kAligned,
                         judge_positions,
                         {"EPE_i = p_i + MLP(p_i) is given in three readings (decision A13): the study does not say "
                          "whether the MLP's norm is applied. "
                          "The literal one is the study's words.",
                          "The cosine is over all heads at once; all learned positions are used."},
                         "epe",
                         "Effective positional encodings",
                         position_pictures});
}

}  // namespace lazy::repro
