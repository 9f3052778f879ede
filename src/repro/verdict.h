// The rules by which a published statement is reproduced, refuted or open.
//
//   a relation  ("A is below B") is tested by the difference's 95 % interval: reproduced when the interval lies
//   entirely
//               on the published side of zero, refuted when entirely on the other, open when it contains zero
//   printed     a number computed from a published checkpoint's weights alone is compared with its printed digits
//   a value     ("59.58 %") is compared only if model, data and measure are the paper's: reproduced when the interval
//               contains it, refuted when not; otherwise open, with the reason
#pragma once
#include <optional>
#include <string>
#include <vector>

#include "core/statistics.h"

namespace lazy::repro {

enum class Verdict { reproduced, refuted, open };
const char* name(Verdict verdict);

enum class ExpectedSign { negative, positive };

// A published statement, the measured estimate and the verdict.
struct Finding {
  std::string claim;                 // the statement that is tested, in words
  std::string paper;                 // the published value or words, with their place in the paper
  std::optional<Estimate> estimate;  // what the verdict rests on
  std::string unit;                  // of the estimate: "nats a token", "share of heads"
  std::string over;                  // what was resampled: "held-out sequences", "heads"
  Verdict verdict = Verdict::open;
  std::string reason;  // one sentence
};

struct Claim {
  std::string text, paper, unit, over;
};

// Tests the sign of a difference.
Finding judge_sign(const Claim& claim, const Estimate& difference, ExpectedSign published);
// `obstacle`: why the value cannot be compared here; empty when it can.
Finding judge_value(const Claim& claim, const Estimate& ours, double published, const std::string& obstacle);
// Compares two counts. `obstacle` as above.
Finding judge_count(const Claim& claim, double ours, double published, const std::string& obstacle);
// A number that follows from given weights alone, against the digits that were printed: reproduced when it rounds to
// them.
Finding judge_printed(const Claim& claim, double ours, const std::string& printed, const std::string& obstacle);
// An open finding without a measurement.
Finding undecided(const Claim& claim, const std::string& reason);

}  // namespace lazy::repro
