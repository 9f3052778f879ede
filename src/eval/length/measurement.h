// Types and functions that all tasks over several context lengths use: the measurement of one task for one model, loss
// curves by document, and bootstrap intervals.
#pragma once
#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "core/statistics.h"
#include "eval/length/lambada.h"
#include "eval/length/length_eval.h"
#include "eval/length/perplexity.h"

namespace lazy::eval::length {

// The loss of one model at every length, for the comparison of models. A unit is a document, an item of LAMBADA, or a
// block of tokens. The losses of a unit are summed over its tokens.
struct LossCurve {
  std::vector<int64_t> lengths;
  std::vector<std::vector<double>> loss;  // loss in nats, indexed by [length][unit]
  std::vector<double> tokens;             // number of tokens, indexed by [unit]; the same for every length
  uint64_t tokenizer = 0;  // fingerprint of the tokenizer; losses are comparable only for equal tokenizers
};

struct Measurement {
  Json entry;       // {"lengths": [...], "skipped": [...], ...}
  LossCurve curve;  // empty for synthetic tasks
};

// A callback that receives the entry of a measurement after each length.
using OnEntry = std::function<void(const Json& entry)>;

// Each function measures one task of one model over all lengths.
Measurement measure_text(const LoadedModel& model, const TextSource& source, const LengthEvalOptions& options,
                         const std::string& title, const OnEntry& on_entry);
Measurement measure_lambada(const LoadedModel& model, const std::vector<TextPair>& pairs,
                            const LengthEvalOptions& options, const std::string& title, const OnEntry& on_entry);
Measurement measure_synthetic(const LoadedModel& model, const std::string& task, const LengthEvalOptions& options,
                              const std::string& title, const OnEntry& on_entry);

// Compares how the losses of two models change with the length. For each length after the first one, returns the
// increase of the loss of `other` since the first length minus the increase of the loss of `base`, in nats per token.
// Both curves use the same bootstrap resamples.
Json compare_change(const LossCurve& base, const LossCurve& other, const LengthEvalOptions& options);

// A 95 % interval. It is absent for fewer than two units or if no bootstrap draw is finite.
using OptionalInterval = std::optional<ConfidenceInterval>;

// Computes bootstrap intervals by resampling units with replacement. All statistics use the same seeded resamples.
// Therefore the interval of a difference of two statistics can be computed from the differences of their draws.
class Bootstrap {
 public:
  Bootstrap(int64_t units, int64_t resamples, uint64_t seed) : units_(units), resamples_(resamples), seed_(seed) {}
  // Returns sum(numerator) / sum(denominator) over the units of each resample; NaN if the denominator is zero.
  std::vector<double> ratios(std::span<const double> numerator, std::span<const double> denominator) const;
  // Returns the central 95 % of the finite draws (percentile method).
  OptionalInterval interval(std::vector<double> draws) const;
  OptionalInterval ratio(std::span<const double> numerator, std::span<const double> denominator) const {
    return interval(ratios(numerator, denominator));
  }

 private:
  int64_t units_, resamples_;
  uint64_t seed_;
};

// Returns Wilson's 95 % interval of a proportion, which is absent without trials. It is used for synthetic tasks, which
// have few trials that are often all correct or all wrong.
OptionalInterval wilson(double successes, double trials);

Json to_json(const OptionalInterval& interval);  // returns [low, high], or null without an interval
Json exp_json(const OptionalInterval& interval);
// Adds the length to entry["skipped"] and logs a warning.
void skip(Json& entry, const std::string& title, int64_t length, const std::string& why);
void warn_not_finite(const std::string& title, int64_t length, int64_t count);

}  // namespace lazy::eval::length
