#include "repro/recipes/inhibition.h"

#include <fmt/format.h>

#include "repro/recipes/layers.h"

namespace lazy::repro {

std::vector<Finding> inhibition_findings(const Results& results, const std::string& model, const std::string& row) {
  const auto bias = results.distance_bias(model);
  Claim claim{
      fmt::format("{}: most heads of the upper layers (above 10 of 24) show inhibition of return: mean bias at "
                  "distances 0-1 above zero, "
                  "minimum over 1-10 below zero, mean over 10-100 back towards zero, mean over 100-511 near zero",
                  row),
      "upper layers show it (paper, section 5.3)", "share of heads - 1/2", "heads"};
  if (bias.empty()) return {undecided(claim, "the model was not trained")};
  if (static_cast<int64_t>(bias[0][0].size()) < kShortestForReturn) {
    return {undecided(
        claim, fmt::format("the bias ends at distance {}: the pattern needs more than 100", bias[0][0].size() - 1))};
  }
  const auto layers = static_cast<int64_t>(bias.size());
  const auto shows = [](const Curve& curve) { return inhibition_of_return(curve).holds ? 1.0 : 0.0; };
  std::vector<double> upper = over_heads(bias, std::min(layer_at(10, layers) + 1, layers), layers, shows);
  for (double& share : upper) share -= 0.5;
  std::vector<Finding> findings{judge_sign(claim, bootstrap_mean(upper), Sign::above_zero)};
  for (int64_t l = 1; l <= layers; ++l) {
    findings.push_back(judge_value({fmt::format("{}: share of heads with inhibition of return in layer {}", row, l),
                                    "not published by layer", "share of heads", "heads"},
                                   bootstrap_mean(over_heads(bias, l, l, shows)), 0,
                                   "nothing is published to compare it with"));
  }
  return findings;
}

}  // namespace lazy::repro
