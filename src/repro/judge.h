// The judge of recipes and of the evidence: an effect measured unit by unit (seed by seed, or text by text of one given
// model), the interval of its mean, and what the interval says of a published statement.
//
//   reproduced    the whole interval lies in the region that the statement names, and the p adjusted for the page's
//                 other claims is below 0.05
//   refuted       the whole interval lies outside of it
//   equal         the interval lies within plus and minus a margin that the rule calls equal
//   open          neither; or too few units for an interval
//   not testable  this scale, model or input cannot show it
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

// A mean over units. Interval (95 %, Student's t) and p are there from two units on, p only where they differ.
struct UnitEstimate {
  double value = 0;
  std::vector<double> by_unit;
  std::optional<ConfidenceInterval> interval;
  std::optional<double> p;
};

// Where an effect lies if a statement is true.
struct Region {
  double low = -INFINITY, high = INFINITY;
  bool contains(const ConfidenceInterval& i) const { return i.low > low && i.high < high; }
  bool excludes(const ConfidenceInterval& i) const { return i.high < low || i.low > high; }
};
inline Region below(double bound) { return {-INFINITY, bound}; }
inline Region above(double bound) { return {bound, INFINITY}; }

// p is two-sided against the region's bound. Of two bounds it is the larger p where the mean lies between them (both
// have to be excluded), else that of the nearer one.
UnitEstimate over_units(const std::vector<double>& values, const Region& region);
// Holm's step-down adjustment, in the order given: (number left) times p, never falling, 1 at most.
std::vector<double> holm(const std::vector<double>& p);

struct Rule {
  Region region;
  double equal_within = 0;           // 0: none
  bool corrected_refutation = true;  // whether a refutation needs the adjusted p as well
  int64_t least = 2;                 // units
  std::string units = "seeds";       // for messages
};
struct Decision {
  Verdict verdict = Verdict::open;
  std::string reason;
};
Decision decide(const UnitEstimate& estimate, const Rule& rule, double adjusted_p);

// Appends another reason after a semicolon; an empty one adds nothing.
void add_reason(std::string& text, const std::string& more);

// Whether a number has the digits that were printed.
bool rounds_to(double ours, const std::string& printed);

// A published statement, the measured effect and the verdict.
struct Finding {
  std::string claim;                     // the statement that is tested, in words
  std::string paper;                     // the published value or words, with their place
  std::string models;                    // what was compared: "lazy, softmax"
  std::string rule;                      // what the effect has to be: "below 0", "within 10 % of 0.5958"
  std::optional<UnitEstimate> estimate;  // what the verdict rests on
  std::string unit;                      // of the estimate: "nats a token", "share of heads"
  std::string over;                      // the units: "seeds", "texts"
  std::string family;                    // of claims that are corrected together; empty: all that name none
  Verdict verdict = Verdict::open;
  std::string reason;  // one sentence
  std::optional<double> adjusted_p;
};

// A finding before the page's correction. Without a rule the verdict stands already, or nothing is published.
struct TestedClaim {
  Finding finding;
  std::optional<Rule> rule;
};
// Verdicts of the claims that have a rule. Those of a family share one Holm correction, in which one without a p counts
// as p = 1.
std::vector<Finding> judge_page(std::vector<TestedClaim> claims);

}  // namespace lazy::repro
