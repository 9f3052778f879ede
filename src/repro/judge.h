// Statistical tests for recipes and for the evidence page. An effect is measured per unit, which is a seed or a text of
// one given model. over_units computes the confidence interval of the mean, which is then compared with a published
// statement. The possible verdicts are:
//
//   reproduced    the whole interval is in the region that the statement names, and the p-value, adjusted for the
//                 other claims of the page, is below 0.05
//   refuted       the whole interval is outside of this region
//   equal         the interval is within plus and minus a margin that the rule treats as equal
//   open          none of the above, or too few units for an interval
//   not testable  this scale, model or input cannot show the effect
#pragma once
#include <cmath>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "core/statistics.h"

namespace lazy::repro {

enum class Verdict { reproduced, refuted, equal, open, not_testable, missing };
const char* name(Verdict verdict);

// The mean over units (seeds or texts). The interval (95 %, Student's t) needs at least two units; p also requires that
// the units are not all equal.
struct UnitEstimate {
  double value = 0;
  std::vector<double> by_unit;
  std::optional<ConfidenceInterval> interval;
  std::optional<double> p;
};

// The range of effects for which a statement is true.
struct Region {
  double low = -INFINITY, high = INFINITY;
  bool contains(const ConfidenceInterval& i) const { return i.low > low && i.high < high; }
  bool excludes(const ConfidenceInterval& i) const { return i.high < low || i.low > high; }
};
inline Region below(double bound) { return {-INFINITY, bound}; }
inline Region above(double bound) { return {bound, INFINITY}; }

// The p-value is two-sided and tests against the bound of the region. A region with two bounds has two p-values. If the
// mean is between the bounds, the larger p-value is returned, because both bounds must be excluded; otherwise the
// p-value of the nearer bound is returned.
UnitEstimate over_units(const std::vector<double>& values, const Region& region);
// Holm's step-down adjustment of p-values; the results are in the order of the input. In ascending order, each p-value
// is multiplied by the number of remaining hypotheses; the results never decrease and are limited to 1.
std::vector<double> holm(const std::vector<double>& p);

struct Rule {
  Region region;
  double equal_within = 0;           // half width of the interval that is treated as equal; 0: not used
  bool corrected_refutation = true;  // whether a refutation also needs an adjusted p below 0.05
  int64_t least = 2;                 // minimum number of units
  std::string units = "seeds";       // name of the units in messages
};
struct Decision {
  Verdict verdict = Verdict::open;
  std::string reason;
};
Decision decide(const UnitEstimate& estimate, const Rule& rule, double adjusted_p);

// Appends a further reason after a semicolon; an empty reason adds nothing.
void add_reason(std::string& text, const std::string& more);

// Whether `ours`, rounded to the number of digits of `printed`, is equal to the printed number.
bool rounds_to(double ours, const std::string& printed);

// A published statement, the measured effect and the verdict.
struct Finding {
  std::string claim;                     // the tested statement, in words
  std::string paper;                     // the published value or wording, with its place in the paper
  std::string models;                    // the compared models: "lazy, softmax"
  std::string rule;                      // the required effect, for example "below 0" or "within 10 % of 0.5958"
  std::optional<UnitEstimate> estimate;  // the estimate that the verdict is based on
  std::string unit;                      // unit of the estimate, for example "nats per token" or "share of heads"
  std::string over;                      // what the estimate is a mean over, for example "seeds" or "texts"
  std::string family;                    // claims with the same family share a Holm correction; "" is also a family
  Verdict verdict = Verdict::open;
  std::string reason;  // reason for the verdict, one sentence
  std::optional<double> adjusted_p;
};

// A finding before the Holm correction of the page. A claim without a rule already has its verdict, or the paper has no
// value for it.
struct TestedClaim {
  Finding finding;
  std::optional<Rule> rule;
};
// Computes the verdicts of the claims that have a rule. The claims of a family share one Holm correction, in which a
// claim without a p-value is treated as p = 1.
std::vector<Finding> judge_page(std::vector<TestedClaim> claims);

}  // namespace lazy::repro
