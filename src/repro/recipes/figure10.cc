// Figure 10: the offset of every head, layer by layer.
#include <cmath>

#include "repro/recipe.h"
#include "repro/recipes/layers.h"

namespace lazy::repro {
namespace {

std::vector<Finding> judge_heads(const Conditions&, const Results& results) {
  const auto tau = results.offsets("lazy");
  const Claim early{"offsets of the lower third are larger than those of the middle third (difference of mean |tau|)",
                    "generally large in early layers, moderate in the middle (paper, appendix E)", "|tau|", "heads"};
  const Claim upper{"heads differ more in the upper third than in the middle third (difference of variances)",
                    "increased head-wise variance in upper layers (paper, appendix E)", "tau^2", "heads"};
  if (tau.size() < 3) {
    const char* why = tau.empty() ? "the model was not trained" : "the model has fewer than three layers";
    return {undecided(early, why), undecided(upper, why)};
  }
  const auto layers = static_cast<int64_t>(tau.size()), low = layer_at(8, layers),
             high = std::max(low + 1, layer_at(16, layers));
  const auto size = [](double value) { return std::abs(value); };
  const auto same = [](double value) { return value; };
  std::vector<Finding> out{
      judge_sign(early, bootstrap_difference(over_heads(tau, 1, low, size), over_heads(tau, low + 1, high, size)),
                 Sign::above_zero)};
  const auto top = over_heads(tau, high + 1, layers, same), middle = over_heads(tau, low + 1, high, same);
  out.push_back(top.size() > 1 && middle.size() > 1
                    ? judge_sign(upper, bootstrap_variance_difference(top, middle), Sign::above_zero)
                    : undecided(upper, "too few heads for a variance"));
  return out;
}

}  // namespace

Recipe figure10() {
  return {"fig10",
          "the offset of every head",
          "paper, Figure 10 and appendix E",
          [](const Conditions& c) {
            return Plan(c)
                .train(lazy_model(c.scale, Budget::main))
                .measure(StepKind::heldout)
                .measure(StepKind::learned)
                .steps();
          },
          judge_heads,
          {},
          {"Lower, middle and upper layers are thirds of the depth: the paper names no boundaries here."}};
}

}  // namespace lazy::repro
