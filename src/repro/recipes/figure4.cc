// Figure 4: learned distance biases across layers and heads of the Lazy model.
#include <fmt/format.h>

#include <cmath>

#include "repro/recipe.h"
#include "repro/recipes/inhibition.h"
#include "repro/recipes/layers.h"

namespace lazy::repro {
namespace {

std::vector<Finding> judge_biases(const Conditions& c, const Results& results) {
  const auto bias = results.distance_bias("lazy");
  std::vector<Finding> out;
  const Claim decay{"in the first layer the bias falls with distance (slope over distances 0 to 100)",
                    "similar to ALiBi's linear decay (paper, section 5.3)", "bias a token", "heads"};
  const Claim middle{"in layers 2 to 10 of 24 the bias is smaller than in the first (mean |bias|, first minus middle)",
                     "about 50 % lower (paper, section 5.3)", "bias", "heads"};
  const Claim half{"mean |bias| of layers 2 to 10 as a share of the first layer's", "about 0.5 (paper, section 5.3)",
                   "share", "heads"};
  const Claim upper{
      "layers 10 to 24 penalize distant positions less than the first (mean bias beyond half the window, upper minus "
      "first)",
      "they no longer penalize distant positions (paper, section 5.3)", "bias", "heads"};
  if (bias.empty()) {
    for (const Claim& claim : {decay, middle, half, upper})
      out.push_back(undecided(claim, "the model was not trained"));
    return out;
  }
  const auto layers = static_cast<int64_t>(bias.size()), last = layer_at(10, layers);
  const auto far = [](const Curve& curve) {
    const auto w = static_cast<int64_t>(curve.size());
    return mean_between(curve, std::min<int64_t>(100, w / 2), w - 1);
  };
  out.push_back(judge_sign(decay,
                           bootstrap_mean(over_heads(bias, 1, 1, [](const Curve& curve) { return slope(curve, 100); })),
                           Sign::below_zero));
  const auto first_size = over_heads(bias, 1, 1, mean_magnitude),
             middle_size = over_heads(bias, 2, std::max<int64_t>(2, last), mean_magnitude);
  if (!middle_size.empty()) {
    out.push_back(judge_sign(middle, bootstrap_difference(first_size, middle_size), Sign::above_zero));
    out.push_back(judge_value(half, bootstrap_ratio(middle_size, first_size), 0.5,
                              c.scale.is_paper() ? "" : "another depth and training length than the paper's"));
  }
  out.push_back(judge_sign(
      upper,
      bootstrap_difference(over_heads(bias, std::min(last + 1, layers), layers, far), over_heads(bias, 1, 1, far)),
      Sign::above_zero));
  for (Finding& finding : inhibition_findings(results, "lazy", "Lazy Attention")) out.push_back(std::move(finding));
  return out;
}

}  // namespace

Recipe figure4() {
  return {"fig4",
          "learned distance biases by layer; inhibition of return",
          "paper, Figure 4 and section 5.3",
          [](const Conditions& c) {
            return Plan(c)
                .train(lazy_model(c.scale, Budget::main))
                .measure(StepKind::heldout)
                .measure(StepKind::learned)
                .steps();
          },
          judge_biases,
          {},
          {"Layers are cut at the paper's shares of the depth (1, 10 and 24 of 24)."}};
}

}  // namespace lazy::repro
