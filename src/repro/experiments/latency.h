// A trained model of Elastic-Softmax in the forms whose times separate the cost of its second pass over the scores from
// what its sparsity gives back.
#pragma once
#include <filesystem>
#include <map>
#include <string>
#include <vector>

#include "model/language_model.h"

namespace lazy::repro {

inline constexpr const char* kAsTrained = "as trained";  // its offsets: real liveness
inline constexpr const char* kAllAlive = "all alive";    // offsets 0: the second pass, no sparsity
inline constexpr const char* kOnePass = "one pass";      // the softmax normalizer: no second pass

struct LatencyVariant {
  std::string name;
  LanguageModel model;
};

// The three forms of the model in `folder`, equal in every other weight, and after them the models `beside`
// (name -> folder). dtype: "fp32" or "bf16". Error if the model in `folder` has another normalizer, or one of the
// models a layer without attention.
std::vector<LatencyVariant> latency_variants(const std::filesystem::path& folder,
                                             const std::map<std::string, std::filesystem::path>& beside,
                                             const std::string& device, const std::string& dtype);

}  // namespace lazy::repro
