// The values of the finished steps of a plan.
#pragma once
#include <map>
#include <string>
#include <vector>

#include "repro/plan.h"

namespace lazy::repro {

class Results {
 public:
  Results(int64_t seeds, std::map<std::string, Json> values) : seeds_(seeds), values_(std::move(values)) {}
  const Json* find(const std::string& step) const;  // nullptr: the step was skipped
  int64_t seeds() const { return seeds_; }
  // Steps whose names end in this suffix, as pairs (model, values): for example ".gamma".
  std::vector<std::pair<std::string, const Json*>> of_kind(const std::string& ending) const;

 private:
  int64_t seeds_;
  std::map<std::string, Json> values_;
};

}  // namespace lazy::repro
