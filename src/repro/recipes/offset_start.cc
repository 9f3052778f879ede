// The digest's sweep of tau's initial value: loss, density and sink from -2 to 0.
#include <fmt/format.h>

#include "repro/recipe.h"

namespace lazy::repro {
namespace {

constexpr double kStarts[] = {-2, -1.5, -1, -0.5, 0};

std::string row(double start) { return fmt::format("tau{:.1f}", start); }

std::vector<Step> plan_starts(const Conditions& c) {
  Plan plan(c);
  for (const double start : kStarts) {
    Model model = elastic_alone(Budget::ablation);  // Table 2's rows have no distance bias (decision A11)
    model.name = row(start);
    model.overrides.push_back(fmt::format("model.offset_init={:.1f}", start));
    plan.train(model);
  }
  return plan.measure(StepKind::heldout).measure(StepKind::sinks).steps();
}

std::vector<Finding> judge_starts(const Conditions& c, const Results& results) {
  const std::string samples = over(results, "samples of held-out text"),
                    obstacle = c.scale.is_paper() ? "" : "another model size and training length than the paper's";
  const char* missing = "one of the two was not measured";
  std::vector<Finding> out{
      judge({"tau from 0 ends with more sink than tau from -1", "4.15 % against 0.18 % (paper, Table 2)",
             "share of weight", samples},
            results.paired_difference(row(0), row(-1), StepKind::sinks, "sink_ratio"), Sign::above_zero, missing),
      judge({"tau from 0 ends with a higher loss than tau from -1", "2.65 against 2.64 (paper, Table 2)",
             "nats a token", over(results, "held-out sequences")},
            results.paired_difference(row(0), row(-1), StepKind::heldout, "loss"), Sign::above_zero, missing),
      judge({"tau from 0 ends with a lower density than tau from -1", "37.30 % against 40.24 % (paper, Table 2)",
             "share of weight", samples},
            results.paired_difference(row(0), row(-1), StepKind::sinks, "density"), Sign::below_zero, missing)};
  for (size_t i = 1; i < std::size(kStarts); ++i) {
    out.push_back(judge(
        {fmt::format("tau from {:.1f} ends with a lower density than tau from {:.1f}", kStarts[i - 1], kStarts[i]),
         "higher negative offsets increase sparsity (digest)", "share of weight", samples},
        results.paired_difference(row(kStarts[i - 1]), row(kStarts[i]), StepKind::sinks, "density"), Sign::below_zero,
        missing));
  }
  const struct { double start, density, sink; } published[] = {{0, 0.3730, 0.0415}, {-1, 0.4024, 0.0018}};
  for (const auto& p : published) {
    for (const auto& [field, value] : {std::pair{"density", p.density}, {"sink_ratio", p.sink}}) {
      if (const auto ours = results.mean(row(p.start), StepKind::sinks, field)) {
        out.push_back(judge_value({fmt::format("{} with tau from {:.0f}", field, p.start),
                                   fmt::format("{} (paper, Table 2)", value), "share of weight", samples},
                                  *ours, value, obstacle));
      }
    }
  }
  return out;
}

}  // namespace

Recipe offset_start() {
  return {
      "tau-init",
      "tau's initial value from -2 to 0: loss, density, sink",
      "digest, experiment 2; paper, Table 2",
      plan_starts,
      judge_starts,
      {"Paper, Table 2 (340M, 10B tokens, context 512)",
       {"loss", "density %", "sink %"},
       {{"tau / i, tau from 0", {2.65, 37.30, 4.15}, row(0)}, {"tau / i, tau from -1", {2.64, 40.24, 0.18}, row(-1)}}},
      {}};
}

}  // namespace lazy::repro
