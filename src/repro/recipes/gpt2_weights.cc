// The GPT-2 study from the weights alone: gamma at massive coordinates, effective positional encodings.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "core/statistics.h"
#include "report/heat_map.h"
#include "report/html.h"
#include "report/plot.h"
#include "report/sections.h"
#include "repro/recipes/given_models.h"

namespace lazy::repro {

// Tables 1 and 2 of the GPT-2 study: |gamma| where EPE_1 is massive against all coordinates, from the weights alone.

namespace {

struct PrintedLayer {
  const char *mean, *std, *at138, *at447;
};
// Layers 1 to 12.
constexpr PrintedLayer kPrintedGamma[] = {{"4.47", "22.226", "12.116", "11.064"}, {"2.8", "6.62", "8.065", "24.468"},
                                          {"1.717", "5.826", "10.178", "23.047"}, {"1.657", "5.02", "18.198", "17.149"},
                                          {"1.561", "4.618", "3.072", "23.854"},  {"0.86", "1.59", "5.644", "6.142"},
                                          {"1.12", "2.701", "12.453", "18.17"},   {"1.404", "3.546", "19.806", "28.01"},
                                          {"1.23", "3.224", "17.846", "28.01"},   {"1.313", "3.616", "23.131", "28.42"},
                                          {"1.403", "4.000", "27.547", "27.691"}, {"1.145", "2.65", "4.5", "13.59"}};

const Claim kBeyond{
    "|gamma| at the two coordinates where |EPE_1| is largest exceeds its mean over all (mean of the two minus the "
    "mean, by layer)",
    "substantially higher than baseline across layers (GPT-2 study, Tables 1 and 2)", "|gamma|", "layers"};

std::vector<Finding> judge_gamma(const GivenModel& model) {
  const auto& [name, of, values] = model;
  std::vector<Finding> out;
  const Json& layers = values.at("gamma");
  const bool same_shape = is_gpt2_small(values);
  const std::string obstacle = same_shape ? "" : "not of gpt2's shape (12 layers of width 768)";
  const auto first = values.at("top").at("literal").at(0).at("coordinate").get<size_t>(),
             second = values.at("top").at("literal").at(1).at("coordinate").get<size_t>();
  std::vector<double> excess;
  for (const Json& layer : layers)
    excess.push_back((layer.at("all").at(first).get<double>() + layer.at("all").at(second).get<double>()) / 2 -
                     layer.at("mean").get<double>());
  out.push_back(judge_sign({of + kBeyond.text, kBeyond.paper, kBeyond.unit, kBeyond.over}, bootstrap_mean(excess),
                           ExpectedSign::positive));
  for (const auto reading : sinks::kEffectivePositionVariants) {
    const Json& top = values.at("top").at(sinks::name(reading));
    const int64_t a = top.at(0).at("coordinate"), b = top.at(1).at("coordinate");
    const Claim coordinates{
        fmt::format(
            "{}the two largest coordinates of |EPE_1| ({}) are 138 and 447: here {} and {}; how many of the two", of,
            words(reading), std::min(a, b), std::max(a, b)),
        "138 and 447 (GPT-2 study, section 4.2.3)", "coordinates", "model"};
    out.push_back(judge_count(coordinates, double((a == 138 || b == 138) + (a == 447 || b == 447)), 2, obstacle));
  }
  for (size_t l = 0; l < std::size(kPrintedGamma) && l < layers.size(); ++l) {
    const PrintedLayer& printed = kPrintedGamma[l];
    const Json& ours = layers.at(l);
    const auto row = [&](const char* what, const Json& value, const char* digits) {
      out.push_back(judge_printed(
          {fmt::format("{}layer {}: {}", of, l + 1, what),
           fmt::format("{} (GPT-2 study, {})", digits, l == 6 || l == 8 || l == 10 ? "Table 1" : "Table 2"), "|gamma|",
           "model"},
          value.get<double>(), digits, obstacle));
    };
    row("mean of |gamma|", ours.at("mean"), printed.mean);
    // The study does not say which; numpy's divides by n, PyTorch's by n - 1.
    const bool by_n = std::abs(ours.at("std").get<double>() - std::stod(printed.std)) <=
                      std::abs(ours.at("std_unbiased").get<double>() - std::stod(printed.std));
    row(by_n ? "standard deviation of |gamma| (over n)" : "standard deviation of |gamma| (over n - 1)",
        ours.at(by_n ? "std" : "std_unbiased"), printed.std);
    if (ours.at("all").size() <= 447) continue;
    row("|gamma[138]|", ours.at("all").at(138), printed.at138);
    row("|gamma[447]|", ours.at("all").at(447), printed.at447);
  }
  return out;
}

// |gamma| at the massive coordinates relative to each layer's maximum.
std::string gamma_pictures(const Json& values, int) {
  report::HeatMap map;
  map.label = "|gamma| at the ten coordinates where |EPE_1| is largest, as a share of the layer's maximum";
  map.column_name = "coordinate";
  const Json& largest = values.at("top").at(sinks::name(sinks::EffectivePositions::literal));
  for (const Json& top : largest) map.column_labels.push_back(std::to_string(top.at("coordinate").get<int64_t>()));
  for (const Json& layer : values.at("gamma")) {
    const auto all = layer.at("all").get<std::vector<double>>();
    const double most = *std::max_element(all.begin(), all.end());
    map.values.emplace_back();
    for (const Json& top : largest) map.values.back().push_back(all.at(top.at("coordinate").get<size_t>()) / most);
  }
  return report::figure(
      report::draw(map) + report::draw_color_bar(1),
      "Row: layer. Column: one of the ten coordinates of largest |EPE_1|, the largest first. Colour: |gamma| "
      "there over the layer's largest |gamma|, in percent.");
}

}  // namespace

Recipe gpt2_gamma() {
  return given_model_recipe(
      {"gpt2-gamma",
       "gamma = W_k^T b_Q at the massive coordinates of EPE_1, from the weights alone",
       "GPT-2 study, Tables 1 and 2",
       "gamma",
       Json::object(),
       kBeyond,
       judge_gamma,
       {"--model is a folder of GPT-2's layout (config.json beside model.safetensors or pytorch_model.bin); no text is "
        "read.",
        "28.01 is printed for layer 8 and for layer 9 at coordinate 447: one of the two may be a slip of copying.",
        "gamma is taken over all heads at once and undivided by the square root of the head size, as in the study."},
       "gamma",
       "gamma where EPE_1 is massive",
       gamma_pictures});
}

// Figures 2, 5 and 6 of the GPT-2 study: EPE_1's massive coordinates, and how W_k EPE_j aligns with the query bias.

namespace {

const Claim kAligned{
    "W_k EPE_1 aligns with b_Q more than the other positions do (cosine at position 1 minus the others' mean, by "
    "layer)",
    "strong alignment in deep layers, others near zero (GPT-2 study, section 4.2.2)", "cosine", "layers"};

std::vector<Finding> judge_positions(const GivenModel& model) {
  const auto& [name, of, values] = model;
  std::vector<Finding> out;
  const std::string obstacle = is_gpt2_small(values) ? "" : "not of gpt2's shape (12 layers of width 768)";
  for (const auto reading : sinks::kEffectivePositionVariants) {
    const Json& layers = values.at(sinks::name(reading)).at("cosines");
    std::vector<double> gap;
    for (const Json& layer : layers)
      gap.push_back(layer.at("first").get<double>() - layer.at("others_mean").get<double>());
    Claim claim = kAligned;
    claim.text = of + claim.text + fmt::format("; EPE as {}", words(reading));
    out.push_back(judge_sign(claim, bootstrap_mean(gap), ExpectedSign::positive));
    const size_t tenth = std::min<size_t>(9, layers.size() - 1);
    // Read off a figure: one digit.
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
  for (const auto reading : sinks::kEffectivePositionVariants) {
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
  return given_model_recipe({"gpt2-epe",
                             "effective positional encodings: massive coordinates, alignment with the query bias",
                             "GPT-2 study, Figures 2, 5 and 6",
                             "positions",
                             Json::object(),
                             kAligned,
                             judge_positions,
                             {"EPE_i = p_i + MLP(p_i) is given in three readings: the study does not say "
                              "whether the MLP's norm is applied. "
                              "The literal one is the study's words.",
                              "The cosine is over all heads at once; all learned positions are used."},
                             "epe",
                             "Effective positional encodings",
                             position_pictures});
}

}  // namespace lazy::repro
