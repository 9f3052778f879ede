// The results of a plan's finished steps, and the comparisons that recipes make with them.
#pragma once
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "core/statistics.h"
#include "repro/distance_bias.h"
#include "repro/plan.h"
#include "repro/verdict.h"

namespace lazy::repro {

class Results {
 public:
  Results(int64_t seeds, std::map<std::string, Json> values) : seeds_(seeds), values_(std::move(values)) {}
  const Json* find(const std::string& step) const;  // nullptr: the step was left out
  int64_t seeds() const { return seeds_; }
  // Steps whose names have this suffix: ".gamma" -> (model, values).
  std::vector<std::pair<std::string, const Json*>> of_kind(const std::string& ending) const;

  // The numbers of a step, one group a seed: "heldout" "loss", "lengths" "heldout/512". Empty when the step was
  // skipped.
  Groups numbers(const std::string& model, StepKind kind, const std::string& field) const;
  // Their mean with its interval.
  std::optional<Estimate> mean(const std::string& model, StepKind kind, const std::string& field) const;
  // mean(a - b), item by item: both models have seen the same texts.
  std::optional<Estimate> paired_difference(const std::string& a, const std::string& b, StepKind kind,
                                            const std::string& field) const;
  // (a at `to` - a at `from`) - (b at `to` - b at `from`), item by item.
  std::optional<Estimate> paired_change(const std::string& a, const std::string& b, StepKind kind,
                                        const std::string& from, const std::string& to) const;

  std::vector<std::vector<double>> offsets(const std::string& model) const;       // [layer][head], of the first seed
  std::vector<std::vector<double>> alibi_slopes(const std::string& model) const;  // [layer][head]
  std::vector<std::vector<BiasCurve>> distance_bias(const std::string& model) const;  // [layer][head][distance]

 private:
  template <typename Head>
  std::vector<std::vector<Head>> learned(const std::string& model, const char* name) const;

  int64_t seeds_;
  std::map<std::string, Json> values_;
};

// "held-out sequences" or, with several seeds, "2 seeds and held-out sequences".
std::string over(const Results& results, const std::string& items);
// judge_sign, or undecided when there is no estimate.
Finding judge(const Claim& claim, const std::optional<Estimate>& difference, ExpectedSign published,
              const std::string& missing);

}  // namespace lazy::repro
