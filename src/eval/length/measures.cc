#include "eval/length/measures.h"

#include <fmt/format.h>

#include <cmath>
#include <numeric>

#include "core/error.h"
#include "core/log.h"

namespace lazy::eval::length {

Json to_json(const Interval& interval) { return interval ? Json{interval->low, interval->high} : Json(nullptr); }

Json exp_json(const Interval& interval) {
  return interval ? Json{std::exp(interval->low), std::exp(interval->high)} : Json(nullptr);
}

void skip(Json& entry, const std::string& title, int64_t length, const std::string& why) {
  log::warn("{}: length {} left out: {}", title, length, why);
  entry["skipped"].push_back({{"length", length}, {"why", why}});
}

void warn_not_finite(const std::string& title, int64_t length, int64_t count) {
  if (count > 0) log::warn("{}: length {}: {} tokens have a loss that is not finite", title, length, count);
}

Measured measure_probe(const Opened& model, const std::string& probe, const StudyOptions& options,
                       const std::string& title) {
  ProbeOptions how = options.probe;
  if (options.bos) how.bos = model.tokenizer->bos_id();
  const bool passkeys = probe == "passkey";
  const int64_t least = passkeys ? passkey_shortest(*model.tokenizer, how) : recall_shortest(how);
  Measured measured{.entry = {{"lengths", Json::array()}, {"skipped", Json::array()}}, .curve = {}};
  for (const int64_t length : options.lengths) {
    if (length < least) {
      skip(measured.entry, title, length,
           fmt::format("{} needs {} tokens", passkeys ? "the question alone" : "a context of these pairs", least));
      continue;
    }
    const std::string name = fmt::format("{} at {}", title, length);
    Json depths = Json::array();
    for (const ProbeCell& cell : passkeys ? passkey(model.scorer, *model.tokenizer, length, how, name)
                                          : recall(model.scorer, *model.tokenizer, length, how, name)) {
      if (!std::isfinite(cell.log_likelihood))
        log::warn("{}: depth {}: the log-likelihood is not finite", name, cell.depth);
      Json row = {{"depth", cell.depth},
                  {"trials", cell.trials},
                  {"exact", double(cell.exact) / double(cell.trials)},
                  {"exact_interval", to_json(wilson(double(cell.exact), double(cell.trials)))},
                  {"log_likelihood", cell.log_likelihood}};
      if (cell.log_likelihood_absent) row["log_likelihood_absent"] = *cell.log_likelihood_absent;
      row["input_tokens"] = cell.input_tokens;
      depths.push_back(row);
    }
    measured.entry["lengths"].push_back({{"length", length}, {"depths", depths}});
  }
  return measured;
}

Json compare_change(const UnitCurve& base, const UnitCurve& other, const StudyOptions& options) {
  Json rows = Json::array();
  if (base.tokenizer != other.tokenizer || base.lengths != other.lengths || base.tokens != other.tokens) return rows;
  const Bootstrap bootstrap(static_cast<int64_t>(base.tokens.size()), options.resamples, options.probe.seed);
  for (size_t l = 1; l < base.lengths.size(); ++l) {
    // (other(L) - other(first)) - (base(L) - base(first)), summed by unit first: one ratio.
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
