// One task for one opened model: the numbers that go into the study, and the sums by document that comparisons need.
#pragma once
#include <vector>

#include "eval/length/bootstrap.h"
#include "eval/length/lambada.h"
#include "eval/length/rolling.h"
#include "eval/length/study.h"

namespace lazy::eval::length {

// What a loss is compared by: sums over each unit at each length that was measured.
struct UnitCurve {
  std::vector<int64_t> lengths;
  std::vector<std::vector<double>> loss;  // [length][unit], nats
  std::vector<double> tokens;             // [unit], the same at every length
  uint64_t tokenizer = 0;                 // fingerprint: losses per token are comparable within one
};

struct Measured {
  Json entry;       // {"lengths": [...], "skipped": [...], ...}
  UnitCurve curve;  // of a loss per token; empty for probes
};

Measured measure_text(const Opened& model, const TextSource& source, const StudyOptions& options,
                      const std::string& title);
Measured measure_lambada(const Opened& model, const std::vector<TextPair>& pairs, const StudyOptions& options,
                         const std::string& title);
Measured measure_probe(const Opened& model, const std::string& probe, const StudyOptions& options,
                       const std::string& title);

// How much more `other` loses than `base` from the first length to each later one, in nats per token, over the same
// resamples.
Json compare_change(const UnitCurve& base, const UnitCurve& other, const StudyOptions& options);

Json to_json(const Interval& interval);  // [low, high] or null
Json exp_json(const Interval& interval);
// Notes in entry["skipped"] that the length was left out, and says so.
void skip(Json& entry, const std::string& title, int64_t length, const std::string& why);
void warn_not_finite(const std::string& title, int64_t length, int64_t count);

}  // namespace lazy::eval::length
