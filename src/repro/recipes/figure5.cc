// Figure 5: the offsets' distribution by layer.
#include "repro/recipe.h"
#include "repro/recipes/layers.h"

namespace lazy::repro {
namespace {

std::vector<Finding> judge_offsets(const Conditions& c, const Results& results) {
  const auto tau = results.offsets("lazy");
  const Claim first{"the first layer's offsets are below those of layers 2 to 17 of 24 (difference of means)",
                    "exceptionally large negative offsets in the first layer (paper, section 5.4)", "tau", "heads"};
  const Claim middle{"the offsets of layers 2 to 17 stay at -1 (mean)", "stable around -1.0 (paper, section 5.4)",
                     "tau", "heads"};
  const Claim upper{"offsets vary more between heads in layers 18 to 24 than in 2 to 17 (difference of variances)",
                    "increased variance in layers >= 18 (paper, section 5.4)", "tau^2", "heads"};
  if (tau.empty()) {
    return {undecided(first, "the model was not trained"), undecided(middle, "the model was not trained"),
            undecided(upper, "the model was not trained")};
  }
  const auto layers = static_cast<int64_t>(tau.size()), last = std::max<int64_t>(2, layer_at(17, layers));
  const auto same = [](double value) { return value; };
  const auto in_first = over_heads(tau, 1, 1, same), in_middle = over_heads(tau, 2, last, same),
             in_upper = over_heads(tau, std::min(last + 1, layers), layers, same);
  if (in_middle.empty()) return {undecided(first, "the model has one layer")};
  std::vector<Finding> out{judge_sign(first, bootstrap_difference(in_first, in_middle), Sign::below_zero),
                           judge_value(middle, bootstrap_mean(in_middle), -1,
                                       c.scale.is_paper() ? "" : "another depth and training length than the paper's")};
  if (in_upper.size() > 1 && in_middle.size() > 1) {
    out.push_back(judge_sign(upper, bootstrap_variance_difference(in_upper, in_middle), Sign::above_zero));
  } else {
    out.push_back(undecided(upper, "too few heads for a variance"));
  }
  return out;
}

}  // namespace

Recipe figure5() {
  return {"fig5",
          "offsets of Elastic-Softmax by layer",
          "paper, Figure 5 and section 5.4",
          [](const Conditions& c) {
            return Plan(c)
                .train(lazy_model(c.scale, Budget::main))
                .measure(StepKind::heldout)
                .measure(StepKind::sinks)
                .measure(StepKind::learned)
                .steps();
          },
          judge_offsets,
          {},
          {"Layers are cut at the paper's shares of the depth (1, 17 and 24 of 24)."}};
}

}  // namespace lazy::repro
