#include "repro/verdict.h"

#include <fmt/format.h>

#include <cmath>

namespace lazy::repro {
namespace {

// With fewer texts or heads than this, resampling says too little: its intervals come out too narrow.
constexpr int64_t kFewest = 8;

std::string too_few(const Estimate& e) {
  return fmt::format("an interval over {} is too narrow to judge by: expected at least {}", e.n, kFewest);
}

Finding finding(const Claim& claim, std::optional<Estimate> estimate, Verdict verdict, std::string reason) {
  return {claim.text, claim.paper, estimate, claim.unit, claim.over, verdict, std::move(reason)};
}

bool usable(const Estimate& e) { return std::isfinite(e.value) && std::isfinite(e.low) && std::isfinite(e.high); }

}  // namespace

const char* name(Verdict verdict) {
  return verdict == Verdict::reproduced ? "reproduced" : verdict == Verdict::refuted ? "refuted" : "open";
}

Finding judge_sign(const Claim& claim, const Estimate& difference, ExpectedSign published) {
  if (!usable(difference))
    return finding(claim, std::nullopt, Verdict::open, "the measured difference is not a finite number");
  if (difference.n < kFewest) return finding(claim, difference, Verdict::open, too_few(difference));
  const bool above = difference.low > 0, below = difference.high < 0;
  if (!above && !below) return finding(claim, difference, Verdict::open, "the interval contains zero");
  const bool agrees = above == (published == ExpectedSign::positive);
  return finding(claim, difference, agrees ? Verdict::reproduced : Verdict::refuted,
                 agrees ? "the whole interval is on the published side of zero"
                        : "the whole interval is on the other side of zero");
}

Finding judge_value(const Claim& claim, const Estimate& ours, double published, const std::string& obstacle) {
  if (!usable(ours)) return finding(claim, std::nullopt, Verdict::open, "the measured value is not a finite number");
  if (!obstacle.empty()) return finding(claim, ours, Verdict::open, obstacle);
  if (ours.n < kFewest) return finding(claim, ours, Verdict::open, too_few(ours));
  const bool inside = ours.low <= published && published <= ours.high;
  return finding(claim, ours, inside ? Verdict::reproduced : Verdict::refuted,
                 inside ? "the interval contains the published value" : "the interval excludes the published value");
}

Finding judge_count(const Claim& claim, double ours, double published, const std::string& obstacle) {
  const Estimate exact{ours, ours, ours, 1};
  if (!obstacle.empty()) return finding(claim, exact, Verdict::open, obstacle);
  const bool equal = ours == published;
  return finding(claim, exact, equal ? Verdict::reproduced : Verdict::refuted,
                 equal ? "the counts are equal" : "the counts differ");
}

Finding judge_printed(const Claim& claim, double ours, const std::string& printed, const std::string& obstacle) {
  const Estimate exact{ours, ours, ours, 1};
  if (!std::isfinite(ours))
    return finding(claim, std::nullopt, Verdict::open, "the measured value is not a finite number");
  if (!obstacle.empty()) return finding(claim, exact, Verdict::open, obstacle);
  const size_t point = printed.find('.');
  const double decimals = point == std::string::npos ? 0 : static_cast<double>(printed.size() - point - 1);
  const bool equal = std::abs(ours - std::stod(printed)) <= 0.5 * std::pow(10, -decimals) * (1 + 1e-6);
  return finding(claim, exact, equal ? Verdict::reproduced : Verdict::refuted,
                 equal ? "it rounds to the printed digits" : "it does not round to the printed digits");
}

Finding undecided(const Claim& claim, const std::string& reason) {
  return finding(claim, std::nullopt, Verdict::open, reason);
}

}  // namespace lazy::repro
