// Figures 4, 8 and 9 of the paper: learned distance biases, with and without RoPE and ALiBi.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstdint>

#include "model/positions/positions.h"
#include "repro/distance_bias.h"
#include "repro/recipe.h"

namespace lazy::repro {

// Figure 4: learned distance biases across layers and heads of the Lazy model.

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
  const auto far = [](const BiasCurve& curve) {
    const auto w = static_cast<int64_t>(curve.size());
    return mean_between(curve, std::min<int64_t>(100, w / 2), w - 1);
  };
  out.push_back(judge_sign(
      decay, bootstrap_mean(over_heads(bias, 1, 1, [](const BiasCurve& curve) { return slope(curve, 100); })),
      ExpectedSign::negative));
  const auto first_size = over_heads(bias, 1, 1, mean_magnitude),
             middle_size = over_heads(bias, 2, std::max<int64_t>(2, last), mean_magnitude);
  if (!middle_size.empty()) {
    out.push_back(judge_sign(middle, bootstrap_difference(first_size, middle_size), ExpectedSign::positive));
    out.push_back(judge_value(half, bootstrap_ratio(middle_size, first_size), 0.5,
                              c.scale.is_paper() ? "" : "another depth and training length than the paper's"));
  }
  out.push_back(judge_sign(
      upper,
      bootstrap_difference(over_heads(bias, std::min(last + 1, layers), layers, far), over_heads(bias, 1, 1, far)),
      ExpectedSign::positive));
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

// Figures 8 and 9: distance biases without RoPE, and beside it.

namespace {

// Softmax attention throughout. Length 1024 at paper scale, else the context of the scale.
int64_t length(const Scale& scale) { return scale.is_paper() ? 1024 : scale.context(Budget::ablation); }

Model model(const Scale& scale, const char* name, int64_t window, const char* rope) {
  Model m{name,
          "transformer",
          {fmt::format("model.distance_bias_window={}", window), fmt::format("model.rope_theta={}", rope)},
          Budget::ablation};
  if (scale.is_paper()) {
    m.overrides.insert(m.overrides.end(),
                       {"training.seq_len=1024", "model.max_position_embeddings=1024", "training.batch_size=32"});
  }
  return m;
}

Model bias_alone(const Scale& scale) { return model(scale, "bias-alone", length(scale), "0"); }
Model alibi_and_bias(const Scale& scale) {
  Model m = model(scale, "alibi-bias", length(scale) / 2, "0");
  m.overrides.push_back("model.positions=\"alibi\"");
  return m;
}
Model trained_alibi(const Scale& scale) {
  Model m = model(scale, "alibi-trained", 0, "0");
  m.overrides.insert(m.overrides.end(), {"model.positions=\"alibi\"", "model.alibi_trainable=true"});
  return m;
}
Model rope_and_bias(const Scale& scale) { return model(scale, "rope-bias", length(scale) / 2, "10000"); }

std::vector<double> ranges(const Results& results, const char* name, size_t most = SIZE_MAX) {
  const auto bias = results.distance_bias(name);
  return over_heads(bias, 1, static_cast<int64_t>(bias.size()), [&](const BiasCurve& curve) {
    return effective_range({curve.begin(), curve.begin() + static_cast<std::ptrdiff_t>(std::min(most, curve.size()))});
  });
}

// Whether the biases of most heads exceed the threshold up to the window's end: then the window limits their range.
bool reaches_the_end(const std::vector<double>& ranges, size_t window) {
  const auto at_end = std::count_if(ranges.begin(), ranges.end(),
                                    [&](double r) { return r >= 0.95 * static_cast<double>(window - 1); });
  return 2 * static_cast<size_t>(at_end) > ranges.size();
}

std::string obstacle(const Conditions& c) {
  return c.scale.is_paper() ? "" : "another model size, length and window than the paper's";
}

std::vector<Finding> judge_alone(const Conditions& c, const Results& results) {
  const Claim claim{
      "bias alone: effective range (last distance whose |bias| exceeds 5 % of the head's maximum), mean over heads",
      "approximately 100 tokens (paper, appendix D)", "tokens", "heads"};
  const auto found = ranges(results, "bias-alone");
  std::vector<Finding> out{found.empty() ? undecided(claim, "the model was not trained")
                                         : judge_value(claim, bootstrap_mean(found), 100, obstacle(c))};
  for (Finding& f : inhibition_findings(results, "bias-alone", "bias alone")) out.push_back(std::move(f));
  return out;
}

Finding judge_bias_beside_alibi(const Conditions& c, const Results& results) {
  const Claim claim{"ALiBi + bias: effective range of the bias, mean over heads",
                    "within 20 tokens (paper, appendix D)", "tokens", "heads"};
  const auto found = ranges(results, "alibi-bias");
  return found.empty() ? undecided(claim, "the model was not trained")
                       : judge_value(claim, bootstrap_mean(found), 20, obstacle(c));
}

// The paper gives no number for "negligible": a tenth of the slope is used.
Finding judge_slopes(const Results& results) {
  const Claim claim{
      "ALiBi with trainable slopes: they hardly change (|change| relative to the start, mean over heads, minus a "
      "tenth)",
      "negligible changes (paper, appendix D)", "relative change - 1/10", "heads"};
  std::vector<double> changes;
  for (const auto& layer : results.alibi_slopes("alibi-trained")) {
    const std::vector<double> start = alibi_slopes(static_cast<int64_t>(layer.size()));
    for (size_t head = 0; head < layer.size(); ++head) changes.push_back(std::abs(layer[head] / start[head] - 1) - 0.1);
  }
  return changes.empty() ? undecided(claim, "the model was not trained")
                         : judge_sign(claim, bootstrap_mean(changes), ExpectedSign::negative);
}

std::vector<Finding> judge_with_rope(const Conditions& c, const Results& results) {
  const Claim shorter{
      "with RoPE the bias reaches less far than alone (difference of effective ranges within the smaller window, RoPE "
      "+ bias minus bias alone)",
      "about 100 tokens alone, within 20 with RoPE (paper, appendix D)", "tokens", "heads"};
  const Claim twenty{"RoPE + bias: effective range, mean over heads", "within 20 tokens (paper, appendix D)", "tokens",
                     "heads"};
  const auto bias = results.distance_bias("rope-bias");
  const size_t window = bias.empty() ? 0 : bias[0][0].size();
  // Both within the smaller window, so that the difference is not that of the windows.
  const auto alone = ranges(results, "bias-alone", window), with_rope = ranges(results, "rope-bias");
  std::vector<Finding> out;
  if (alone.empty() || with_rope.empty()) {
    out = {undecided(shorter, "one of the two was not trained"), undecided(twenty, "the model was not trained")};
  } else {
    if (reaches_the_end(alone, window) && reaches_the_end(with_rope, window)) {
      out.push_back(undecided(
          shorter,
          fmt::format(
              "both biases exceed the threshold up to the window's end at distance {}: too little training to tell",
              window - 1)));
    } else {
      out.push_back(judge_sign(shorter, bootstrap_difference(with_rope, alone), ExpectedSign::negative));
    }
    // "Within": the statement is a bound.
    std::vector<double> beyond = with_rope;
    for (double& range : beyond) range -= 20;
    if (c.scale.is_paper()) {
      Claim bound = twenty;
      bound.text += ", minus 20";
      out.push_back(judge_sign(bound, bootstrap_mean(beyond), ExpectedSign::negative));
    } else {
      out.push_back(judge_value(twenty, bootstrap_mean(with_rope), 20, obstacle(c)));
    }
  }
  for (Finding& f : inhibition_findings(results, "rope-bias", "RoPE + bias")) out.push_back(std::move(f));
  out.push_back(judge_bias_beside_alibi(c, results));
  out.push_back(judge_slopes(results));
  return out;
}

}  // namespace

Recipe figure8() {
  return {"fig8",
          "distance biases without RoPE: effective range",
          "paper, Figure 8 and appendix D",
          [](const Conditions& c) {
            return Plan(c).train(bias_alone(c.scale)).measure(StepKind::heldout).measure(StepKind::learned).steps();
          },
          judge_alone,
          {},
          {"Softmax attention, no RoPE, W = the training length (1024 at paper scale)."}};
}

Recipe figure9() {
  return {"fig9",
          "distance biases beside RoPE and ALiBi; the slopes' change",
          "paper, Figure 9 and appendix D",
          [](const Conditions& c) {
            return Plan(c)
                .train(bias_alone(c.scale))
                .train(rope_and_bias(c.scale))
                .train(alibi_and_bias(c.scale))
                .train(trained_alibi(c.scale))
                .measure(StepKind::heldout)
                .measure(StepKind::learned)
                .steps();
          },
          judge_with_rope,
          {},
          {"Softmax attention; RoPE base 1e4, or ALiBi; W = half the training length (512 of 1024 at paper scale; "
           ")."}};
}

}  // namespace lazy::repro
