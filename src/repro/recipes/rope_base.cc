// The digest's third open question: how much the RoPE base matters.
#include <fmt/format.h>

#include "repro/recipe.h"

namespace lazy::repro {
namespace {

constexpr int64_t kBases[] = {10000, 50000, 150000, 1000000};

std::string row(const char* kind, int64_t base) { return fmt::format("{}-base{}", kind, base); }

std::vector<Step> plan_bases(const Conditions& c) {
  Plan plan(c);
  for (const int64_t base : kBases) {
    Model lazy = lazy_model(c.scale, Budget::ablation), softmax = softmax_model(Budget::ablation);
    lazy.name = row("lazy", base);
    softmax.name = row("softmax", base);
    for (Model* m : {&lazy, &softmax}) {
      m->overrides.push_back(fmt::format("model.rope_theta={}", base));
      plan.train(*m);
    }
  }
  const int64_t context = c.scale.context(Budget::ablation);
  return plan.measure(StepKind::heldout)
      .measure(StepKind::sinks)
      .measure(StepKind::lengths, {{"lengths", {context, 4 * context}}})
      .steps();
}

std::vector<Finding> judge_bases(const Conditions& c, const Results& results) {
  const int64_t context = c.scale.context(Budget::ablation);
  const std::string from = fmt::format("heldout/{}", context), to = fmt::format("heldout/{}", 4 * context);
  std::vector<Finding> out;
  for (const char* kind : {"lazy", "softmax"}) {
    for (const int64_t base : kBases) {
      if (base == kBases[0]) continue;
      out.push_back(judge({fmt::format("{}: base {} degrades less than base {} at {} tokens (trained at {})", kind,
                                       base, kBases[0], 4 * context, context),
                           "a larger base mitigates long-range decay (paper, section 4.1)", "nats a token",
                           over(results, "stretches of text")},
                          results.paired_change(row(kind, base), row(kind, kBases[0]), StepKind::lengths, from, to),
                          Sign::below_zero, "not measured"));
      out.push_back(
          judge({fmt::format("{}: base {} has a lower held-out loss than base {} at the training length", kind, base,
                             kBases[0]),
                 "adopted for Lazy Attention, not ablated", "nats a token", over(results, "held-out sequences")},
                results.paired_difference(row(kind, base), row(kind, kBases[0]), StepKind::heldout, "loss"),
                Sign::below_zero, "not measured"));
    }
  }
  for (const int64_t base : kBases) {
    out.push_back(
        judge({fmt::format("base {}: Lazy Attention's sink ratio is below softmax's", base),
               "removes the sink (paper, section 5.6)", "share of weight", over(results, "samples of held-out text")},
              results.paired_difference(row("lazy", base), row("softmax", base), StepKind::sinks, "sink_ratio"),
              Sign::below_zero, "not measured"));
  }
  return out;
}

}  // namespace

Recipe rope_base() {
  return {"rope-base",
          "sensitivity to the RoPE base",
          "digest, open question 3; paper, section 4.1",
          plan_bases,
          judge_bases,
          {},
          {"Bases 1e4, 5e4, 1.5e5 and 1e6, each for Lazy Attention and for softmax."}};
}

}  // namespace lazy::repro
