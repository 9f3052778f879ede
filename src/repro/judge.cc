#include "repro/judge.h"

#include <fmt/format.h>

#include <algorithm>
#include <boost/math/distributions/students_t.hpp>
#include <numeric>
#include <utility>

namespace lazy::repro {
namespace {

constexpr double kConfidence = 0.95, kLevel = 0.05;

// Describes a region, for example "below 0" or "between 0.54 and 0.66", or the outside of a region, for example "above
// 0" or "outside of 0.54 to 0.66".
std::string words(const Region& r, bool inside) {
  if (std::isfinite(r.low) && std::isfinite(r.high))
    return inside ? fmt::format("between {:g} and {:g}", r.low, r.high)
                  : fmt::format("outside of {:g} to {:g}", r.low, r.high);
  const bool above = std::isfinite(r.low);
  return fmt::format("{} {:g}", above == inside ? "above" : "below", above ? r.low : r.high);
}

// Whether the values of the units (seeds or texts) differ by more than rounding. Equal values do not show how the
// values of further units would vary. For example, scores are fractions of a fixed number of questions, so two models
// can have exactly equal scores.
bool has_spread(const UnitEstimate& e) { return e.interval->high - e.interval->low > 1e-9 * std::abs(e.value); }

}  // namespace

const char* name(Verdict verdict) {
  constexpr const char* names[] = {"reproduced", "refuted", "equal", "open", "not testable", "missing"};
  return names[static_cast<size_t>(verdict)];
}

UnitEstimate over_units(const std::vector<double>& values, const Region& region) {
  UnitEstimate e;
  e.by_unit = values;
  if (values.empty()) return e;
  e.value = mean_of(values);
  if (values.size() < 2) return e;
  const auto n = static_cast<double>(values.size());
  const double error = std::sqrt(variance_of(values) / n);
  if (!std::isfinite(error)) return e;
  const boost::math::students_t t(n - 1);
  const double half = error * boost::math::quantile(t, (1 + kConfidence) / 2);
  e.interval = ConfidenceInterval{e.value - half, e.value + half};
  if (!has_spread(e)) return e;
  const auto against = [&](double bound) -> double {
    return 2 * boost::math::cdf(boost::math::complement(t, std::abs(e.value - bound) / error));
  };
  const bool bounded_below = std::isfinite(region.low), bounded_above = std::isfinite(region.high);
  if (bounded_below && bounded_above) {
    const double low = against(region.low), high = against(region.high);
    e.p = e.value < region.low ? low : e.value > region.high ? high : std::max(low, high);
  } else if (bounded_below || bounded_above) {
    e.p = against(bounded_below ? region.low : region.high);
  }
  return e;
}

std::vector<double> holm(const std::vector<double>& p) {
  std::vector<size_t> order(p.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::stable_sort(order.begin(), order.end(), [&](size_t a, size_t b) { return p[a] < p[b]; });
  std::vector<double> out(p.size());
  double most = 0;
  for (size_t i = 0; i < order.size(); ++i) {
    most = std::max(most, std::min(1.0, static_cast<double>(p.size() - i) * p[order[i]]));
    out[order[i]] = most;
  }
  return out;
}

Decision decide(const UnitEstimate& e, const Rule& rule, double adjusted_p) {
  const auto n = static_cast<int64_t>(e.by_unit.size());
  if (!std::isfinite(e.value) || (n > 1 && !e.interval)) return {Verdict::open, "the effect is not a finite number"};
  if (n < rule.least || !e.interval) {
    if (n == 1 && rule.units == "seeds") return {Verdict::open, "one seed has no interval"};
    return {Verdict::open, fmt::format("too few {} for an interval: found {}, expected at least {}", rule.units, n,
                                       std::max<int64_t>(rule.least, 2))};
  }
  const ConfidenceInterval& i = *e.interval;
  if (rule.equal_within > 0 && std::max(std::abs(i.low), std::abs(i.high)) <= rule.equal_within)
    return {Verdict::equal, fmt::format("the whole interval is within {:g} of zero", rule.equal_within)};
  if (!has_spread(e))
    return {Verdict::open, fmt::format("the values of its {} are equal, so their spread is unknown", rule.units)};
  const bool certain = adjusted_p < kLevel;
  if (rule.region.excludes(i) && (certain || !rule.corrected_refutation))
    return {Verdict::refuted, "the whole interval is " + words(rule.region, false)};
  if (rule.region.contains(i) && certain)
    return {Verdict::reproduced, "the whole interval is " + words(rule.region, true)};
  if (rule.region.excludes(i) || rule.region.contains(i)) return {Verdict::open, "the adjusted p is not below 0.05"};
  return {Verdict::open, std::isfinite(rule.region.low) && std::isfinite(rule.region.high)
                             ? "the interval contains a bound of the rule"
                             : fmt::format("the interval contains {:g}",
                                           std::isfinite(rule.region.low) ? rule.region.low : rule.region.high)};
}

void add_reason(std::string& text, const std::string& more) {
  if (!more.empty()) text += (text.empty() ? "" : "; ") + more;
}

bool rounds_to(double ours, const std::string& printed) {
  const size_t point = printed.find('.');
  const double decimals = point == std::string::npos ? 0 : static_cast<double>(printed.size() - point - 1);
  return std::abs(ours - std::stod(printed)) <= 0.5 * std::pow(10, -decimals) * (1 + 1e-6);
}

static void judge_family(const std::vector<TestedClaim*>& claims) {
  std::vector<double> p;
  for (TestedClaim* c : claims) {
    std::optional<UnitEstimate>& estimate = c->finding.estimate;
    if (estimate) estimate = over_units(estimate->by_unit, c->rule->region);
    p.push_back(estimate ? estimate->p.value_or(1) : 1);
  }
  const std::vector<double> adjusted = holm(p);
  for (size_t n = 0; n < claims.size(); ++n) {
    Finding& f = claims[n]->finding;
    if (!f.estimate) continue;
    if (f.estimate->p) f.adjusted_p = adjusted[n];
    const Decision decision = decide(*f.estimate, *claims[n]->rule, adjusted[n]);
    f.verdict = decision.verdict;
    const std::string before = std::exchange(f.reason, decision.reason);
    add_reason(f.reason, before);
    if (!std::isfinite(f.estimate->value)) f.estimate.reset();
  }
}

std::vector<Finding> judge_page(std::vector<TestedClaim> claims) {
  std::map<std::string, std::vector<TestedClaim*>> families;
  for (TestedClaim& c : claims) {
    if (c.rule) families[c.finding.family].push_back(&c);
  }
  for (const auto& [name, members] : families) judge_family(members);
  std::vector<Finding> out;
  for (TestedClaim& c : claims) out.push_back(std::move(c.finding));
  return out;
}

}  // namespace lazy::repro
