// The digest's second open question: does two-pass attention cost what its sparsity gives?
#include <fmt/format.h>

#include <cmath>

#include "repro/recipe.h"

namespace lazy::repro {
namespace {

std::vector<Step> plan_rounds(const Conditions& c) {
  const bool gpu = c.device == "cuda";
  Json settings{{"rounds", 9}, {"device", c.device}, {"dtype", gpu ? "bf16" : "fp32"}, {"head_dim", 64}};
  // As long as a laptop does in seconds; a GPU's usual shapes.
  settings["attention"] = gpu ? Json{{"batch", 8}, {"length", 4096}, {"heads", 16}}
                              : Json{{"batch", 1}, {"length", c.scale.name == "tiny" ? 1024 : 4096}, {"heads", 4}};
  settings["decode"] = gpu ? Json{{"batch", 16}, {"keys", 32768}, {"heads", 16}}
                           : Json{{"batch", 1}, {"keys", c.scale.name == "tiny" ? 8192 : 32768}, {"heads", 4}};
  return Plan(c).once(StepKind::latency, "latency", settings).steps();
}

std::vector<Finding> judge_speed(const Conditions&, const Results& results) {
  const struct {
    const char *field, *words;
  } parts[] = {{"forward", "forward pass over a whole text"},
               {"forward_backward", "forward and backward pass (training)"},
               {"decode", "one new token against a long cache"}};
  std::vector<Finding> out;
  const Json* values = results.find("latency");
  for (const auto& part : parts) {
    Claim claim{fmt::format("{}: Elastic-Softmax is at least as fast as softmax by the same kernels (log of softmax's "
                            "time over Elastic-Softmax's)",
                            part.words),
                "\"minimal overhead\" (paper, appendix F), no times published", "log ratio", "rounds of the benchmark"};
    if (!values || !values->contains(part.field)) {
      out.push_back(undecided(claim, "not measured"));
      continue;
    }
    const Json& found = values->at(part.field);
    std::vector<double> logs;
    for (const double ratio : found.at("ratios").get<std::vector<double>>()) logs.push_back(std::log(ratio));
    Finding finding = judge_sign(claim, bootstrap_mean(logs), Sign::above_zero);
    finding.reason +=
        fmt::format("; speed {:.2f} of softmax's, {:.0f} % of pairs alive",
                    std::exp(finding.estimate ? finding.estimate->value : 0), 100 * found.at("alive").get<double>());
    out.push_back(finding);
  }
  return out;
}

}  // namespace

Recipe latency() {
  return {
      "latency",
      "does the second pass cost what sparsity gives?",
      "digest, open question 2; paper, appendix F",
      plan_rounds,
      judge_speed,
      {},
      {"Times of lazy bench attention and lazy bench decode on this machine, softmax and Elastic-Softmax by the same "
       "kernels, without distance bias.",
       "How many pairs are alive is set by the benchmark's scores; trained models have 15 to 30 % (docs/results/)."}};
}

}  // namespace lazy::repro
