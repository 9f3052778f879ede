// What the tasks over lengths have in common: a model's measurement of a task, loss curves by document, and bootstrap
// intervals.
#pragma once
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "core/statistics.h"
#include "eval/length/lambada.h"
#include "eval/length/length_eval.h"
#include "eval/length/perplexity.h"

namespace lazy::eval::length {

// Summed losses of every unit (document, item or block) at every measured length; models are compared by them.
struct LossCurve {
  std::vector<int64_t> lengths;
  std::vector<std::vector<double>> loss;  // [length][unit], nats
  std::vector<double> tokens;             // [unit], the same at every length
  uint64_t tokenizer = 0;                 // fingerprint: losses per token are comparable only within one tokenizer
};

struct Measurement {
  Json entry;       // {"lengths": [...], "skipped": [...], ...}
  LossCurve curve;  // empty for synthetic tasks
};

// One task of one model over all lengths.
Measurement measure_text(const LoadedModel& model, const TextSource& source, const LengthEvalOptions& options,
                         const std::string& title);
Measurement measure_lambada(const LoadedModel& model, const std::vector<TextPair>& pairs,
                            const LengthEvalOptions& options, const std::string& title);
Measurement measure_synthetic(const LoadedModel& model, const std::string& task, const LengthEvalOptions& options,
                              const std::string& title);

// How much more `other` loses than `base` from the first length to each later one, in nats per token, over the same
// resamples.
Json compare_change(const LossCurve& base, const LossCurve& other, const LengthEvalOptions& options);

// A 95 % interval; none for fewer than two units, or without a finite draw.
using OptionalInterval = std::optional<ConfidenceInterval>;

// Intervals by resampling units with replacement. Every statistic sees the same seeded resamples, so that two of them
// can be compared draw by draw.
class Bootstrap {
 public:
  Bootstrap(int64_t units, int64_t resamples, uint64_t seed) : units_(units), resamples_(resamples), seed_(seed) {}
  // sum(numerator) / sum(denominator) over the units of each resample; NaN where the denominator's sum is zero.
  std::vector<double> ratios(std::span<const double> numerator, std::span<const double> denominator) const;
  // The central 95 % of the finite draws (percentile method).
  OptionalInterval interval(std::vector<double> draws) const;
  OptionalInterval ratio(std::span<const double> numerator, std::span<const double> denominator) const {
    return interval(ratios(numerator, denominator));
  }

 private:
  int64_t units_, resamples_;
  uint64_t seed_;
};

// Wilson's 95 % interval of a proportion; none without trials. For synthetic tasks, whose trials are few and often all
// right or all wrong.
OptionalInterval wilson(double successes, double trials);

Json to_json(const OptionalInterval& interval);  // [low, high] or null
Json exp_json(const OptionalInterval& interval);
// Adds the length to entry["skipped"] and warns.
void skip(Json& entry, const std::string& title, int64_t length, const std::string& why);
void warn_not_finite(const std::string& title, int64_t length, int64_t count);

}  // namespace lazy::eval::length
