// What recipes about given models share: their names, and what is said of each.
#pragma once
#include <string>
#include <vector>

#include "repro/step.h"

namespace lazy::repro {

// The models given by --model; one by the name "model", which no step has, where there is none.
inline std::vector<std::string> studied_models(const Conditions& conditions) {
  std::vector<std::string> names;
  for (const auto& [name, folder] : conditions.models) names.push_back(name);
  if (names.empty()) names.emplace_back("model");
  return names;
}

// The beginning of a sentence about one of several models; nothing where there is one.
inline std::string of_model(const Conditions& conditions, const std::string& model) {
  return conditions.models.size() > 1 ? model + ": " : "";
}

// The shape of `gpt2`, whose numbers the GPT-2 study prints. Other weights of that shape are another model: then the
// numbers differ.
inline bool is_gpt2_small(const Json& values) { return values.at("layers") == 12 && values.at("hidden_size") == 768; }

// How EPE is read, in words.
inline std::string reading(const std::string& variant) {
  return variant == "literal"  ? "the MLP on p as it stands"
         : variant == "normed" ? "the MLP on the norm of p"
                               : "the whole first layer on p alone";
}

}  // namespace lazy::repro
