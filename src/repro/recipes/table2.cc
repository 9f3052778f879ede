// Table 2: normalizers and forms of Elastic-Softmax's offset.
#include <fmt/format.h>

#include <algorithm>

#include "repro/recipe.h"

namespace lazy::repro {
namespace {

struct Row {
  const char *model, *title;
  std::vector<std::string> overrides;
  double loss, performance, density, sink;  // the paper's; 0: its row is blank
};

const std::vector<Row>& rows() {
  static const std::vector<Row> all{
      {"softmax", "softmax", {}, 2.62, 45.48, 94.53, 5.46},
      {"sparsemax", "sparsemax", {"model.normalizer=\"sparsemax\""}, 2.65, 45.92, 96.87, 3.03},
      {"entmax15", "entmax-1.5", {"model.normalizer=\"entmax15\""}, 0, 0, 0, 0},
      {"elastic-constant",
       "ReLU(softmax + tau), tau from 0",
       {"model.normalizer=\"elastic\"", "model.offset=\"constant\"", "model.offset_init=0.0"},
       2.75,
       43.83,
       15.13,
       1.66},
      {"tau0.0",
       "ReLU(softmax + tau / i), tau from 0",
       {"model.normalizer=\"elastic\"", "model.offset_init=0.0"},
       2.65,
       45.29,
       37.30,
       4.15},
      {"elastic", "ReLU(softmax + tau / i), tau from -1", {"model.normalizer=\"elastic\""}, 2.64, 45.70, 40.24, 0.18},
      {"elastic-fixed",
       "ReLU(softmax - 1 / i)",
       {"model.normalizer=\"elastic\"", "model.offset_trainable=false"},
       2.67,
       45.40,
       43.16,
       0.54}};
  return all;
}

std::vector<Step> plan_normalizers(const Conditions& c) {
  Plan plan(c);  // no distance bias, as in the authors' configurations (decision A11)
  for (const Row& row : rows()) plan.train({row.model, "transformer", row.overrides, Budget::ablation});
  return plan.measure(StepKind::heldout).measure(StepKind::sinks).measure(StepKind::tasks).steps();
}

// A measure of the table: its published column, in shares as we measure it.
struct Measure {
  const char *name, *field;
  StepKind kind;
  double Row::*published;
  double unit;
  const char* in;
};
constexpr Measure kMeasures[] = {{"held-out loss", "loss", StepKind::heldout, &Row::loss, 1, "nats a token"},
                                 {"density", "density", StepKind::sinks, &Row::density, 0.01, "share of weight"},
                                 {"sink ratio", "sink_ratio", StepKind::sinks, &Row::sink, 0.01, "share of weight"}};

std::vector<Finding> judge_normalizers(const Conditions& c, const Results& results) {
  const std::string obstacle = c.scale.is_paper() ? "" : "another model size and training length than the paper's";
  const char* missing = "one of the two was not measured";
  const Row& softmax = rows().front();
  std::vector<Finding> out;
  for (const Row& row : rows()) {
    for (const Measure& m : kMeasures) {
      const std::string unit = m.in, items = over(results, m.kind == StepKind::heldout ? "held-out sequences"
                                                                                       : "samples of held-out text");
      const double published = row.*m.published, of_softmax = softmax.*m.published;
      if (&row != &softmax && published > 0) {
        const bool above = published > of_softmax;
        out.push_back(judge(
            {fmt::format("{}: the {} is {} softmax's", row.title, m.name, above ? "above" : "below"),
             fmt::format("{:.2f} against {:.2f}{} (paper, Table 2)", published, of_softmax, m.unit < 1 ? " %" : ""),
             unit, items},
            results.paired_difference(row.model, softmax.model, m.kind, m.field),
            above ? Sign::above_zero : Sign::below_zero, missing));
      }
      const auto ours = results.mean(row.model, m.kind, m.field);
      if (!ours) continue;
      const Claim value{fmt::format("{} of {}", m.name, row.title),
                        published > 0 ? fmt::format("{:.4g} (paper, Table 2)", published * m.unit)
                                      : "not published: the paper's row is blank",
                        unit, items};
      out.push_back(
          judge_value(value, *ours, published * m.unit, published > 0 ? obstacle : "the paper has no figure"));
    }
  }
  for (const char* other : {"elastic-constant", "tau0.0", "elastic-fixed"}) {
    const Row& row =
        *std::find_if(rows().begin(), rows().end(), [&](const Row& r) { return r.model == std::string(other); });
    out.push_back(judge({fmt::format("tau / i from -1 has a lower held-out loss than {}", row.title),
                         fmt::format("2.64 against {:.2f} (paper, Table 2)", row.loss), "nats a token",
                         over(results, "held-out sequences")},
                        results.paired_difference("elastic", other, StepKind::heldout, "loss"), Sign::below_zero,
                        missing));
  }
  return out;
}

PublishedTable published_normalizers() {
  PublishedTable t{
      "Paper, Table 2 (340M, 10B tokens, context 512)", {"loss", "average score", "density %", "sink %"}, {}};
  for (const Row& row : rows()) {
    if (row.loss > 0) t.rows.push_back({row.title, {row.loss, row.performance, row.density, row.sink}, row.model});
  }
  return t;
}

}  // namespace

Recipe table2() {
  return {"table2",
          "normalizers and offsets: loss, score, density, sink",
          "paper, Table 2",
          plan_normalizers,
          judge_normalizers,
          published_normalizers(),
          {"The entmax row is blank in the paper; the authors' own code for it is not entmax.",
           "The average score is the mean of the accuracies that lazy eval averages, of as many tasks as --data has "
           "and the model can read; the paper does not say "
           "which its is over."}};
}

}  // namespace lazy::repro
