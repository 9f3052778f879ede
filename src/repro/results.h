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
  const Json* find(const std::string& step) const;  // nullptr if the step was skipped
  int64_t seeds() const { return seeds_; }
  // Returns the steps whose names end in this suffix (for example ".gamma") as pairs (model, values).
  std::vector<std::pair<std::string, const Json*>> of_kind(const std::string& ending) const;

 private:
  int64_t seeds_;
  std::map<std::string, Json> values_;
};

}  // namespace lazy::repro
