// Figures 5 and 10 of the paper: learned offsets by layer and head.
#include <cmath>

#include "repro/distance_bias.h"
#include "repro/recipe.h"

namespace lazy::repro {

// Figure 5: the offsets' distribution by layer.

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
  std::vector<Finding> out{judge_sign(first, bootstrap_difference(in_first, in_middle), ExpectedSign::negative),
                           judge_value(middle, bootstrap_mean(in_middle), -1,
                                       c.scale.is_paper() ? "" : "another depth and training length than the paper's")};
  if (in_upper.size() > 1 && in_middle.size() > 1) {
    out.push_back(judge_sign(upper, bootstrap_variance_difference(in_upper, in_middle), ExpectedSign::positive));
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

// Figure 10: the offset of every head, layer by layer.

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
                 ExpectedSign::positive)};
  const auto top = over_heads(tau, high + 1, layers, same), middle = over_heads(tau, low + 1, high, same);
  out.push_back(top.size() > 1 && middle.size() > 1
                    ? judge_sign(upper, bootstrap_variance_difference(top, middle), ExpectedSign::positive)
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
