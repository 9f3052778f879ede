#include "eval/length/measurement.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "core/counted.h"
#include "core/error.h"
#include "core/log.h"
#include "core/random.h"

namespace lazy::eval::length {

std::vector<double> Bootstrap::ratios(std::span<const double> numerator, std::span<const double> denominator) const {
  const auto units = static_cast<size_t>(units_);
  if (numerator.size() != units || denominator.size() != units) {
    fail("bootstrap", "expected {} units, found {} and {}", units, numerator.size(), denominator.size());
  }
  return bootstrap_draws(resamples_, seed_, [&](Random& random) {
    double above = 0, below = 0;
    for (size_t i = 0; i < units; ++i) {
      const auto u = static_cast<size_t>(random.below(units));
      above += numerator[u];
      below += denominator[u];
    }
    return below == 0 ? NAN : above / below;
  });
}

OptionalInterval Bootstrap::interval(std::vector<double> draws) const {
  if (units_ < 2) return std::nullopt;
  std::erase_if(draws, [](double d) { return !std::isfinite(d); });
  if (draws.empty()) return std::nullopt;
  return central_interval(std::move(draws));
}

OptionalInterval wilson(double successes, double trials) {
  if (!(trials > 0)) return std::nullopt;
  constexpr double z = 1.959963984540054;  // 97.5 % quantile of the normal distribution, for a two-sided 95 % interval
  const double p = successes / trials, scale = 1 + z * z / trials, middle = (p + z * z / (2 * trials)) / scale;
  const double half = z / scale * std::sqrt(p * (1 - p) / trials + z * z / (4 * trials * trials));
  return ConfidenceInterval{std::max(0.0, middle - half), std::min(1.0, middle + half)};
}

Json to_json(const OptionalInterval& interval) {
  return interval ? Json{interval->low, interval->high} : Json(nullptr);
}

Json exp_json(const OptionalInterval& interval) {
  return interval ? Json{std::exp(interval->low), std::exp(interval->high)} : Json(nullptr);
}

void skip(Json& entry, const std::string& title, int64_t length, const std::string& why) {
  log::warn("{}: length {} skipped: {}", title, length, why);
  entry["skipped"].push_back({{"length", length}, {"why", why}});
}

void warn_not_finite(const std::string& title, int64_t length, int64_t count) {
  if (count > 0) log::warn("{}: length {}: the loss of {} is not finite", title, length, counted(count, "token"));
}

Json compare_change(const LossCurve& base, const LossCurve& other, const LengthEvalOptions& options) {
  Json rows = Json::array();
  if (base.tokenizer != other.tokenizer || base.lengths != other.lengths || base.tokens != other.tokens) return rows;
  const Bootstrap bootstrap(static_cast<int64_t>(base.tokens.size()), options.resamples, options.synthetic.seed);
  for (size_t l = 1; l < base.lengths.size(); ++l) {
    // Computes (other(L) - other(first)) - (base(L) - base(first)), where other(L) and base(L) are the losses per token
    // of the two models at length L. The differences are computed for each unit first, so that only one ratio (sum of
    // differences / sum of tokens) has to be resampled.
    std::vector<double> change(base.tokens.size());
    for (size_t u = 0; u < change.size(); ++u) {
      change[u] = (other.loss[l][u] - other.loss[0][u]) - (base.loss[l][u] - base.loss[0][u]);
    }
    const double total = std::accumulate(change.begin(), change.end(), 0.0) /
                         std::accumulate(base.tokens.begin(), base.tokens.end(), 0.0);
    rows.push_back({{"length", base.lengths[l]},
                    {"difference", total},
                    {"interval", to_json(bootstrap.ratio(change, base.tokens))}});
  }
  return rows;
}

}  // namespace lazy::eval::length
