#include "repro/results.h"

namespace lazy::repro {

const Json* Results::find(const std::string& step) const {
  const auto found = values_.find(step);
  return found == values_.end() ? nullptr : &found->second;
}

std::vector<std::pair<std::string, const Json*>> Results::of_kind(const std::string& ending) const {
  std::vector<std::pair<std::string, const Json*>> out;
  for (const auto& [step, values] : values_) {
    if (step.ends_with(ending)) out.emplace_back(step.substr(0, step.size() - ending.size()), &values);
  }
  return out;
}

}  // namespace lazy::repro
