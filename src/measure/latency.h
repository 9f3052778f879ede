// Variants of a trained Elastic-Softmax model whose times separate the cost of its second pass over the scores from the
// time that its sparsity saves.
#pragma once
#include <filesystem>
#include <map>
#include <string>
#include <vector>

#include "model/language_model.h"

namespace lazy::measure {

// Trained offsets, and therefore the real fraction of keys with nonzero weight.
inline constexpr const char* kAsTrained = "as trained";
// All offsets are 0: second pass over the scores without sparsity.
inline constexpr const char* kAllAlive = "all alive";
inline constexpr const char* kOnePass = "one pass";  // normalizer softmax: no second pass over the scores

struct LatencyVariant {
  std::string name;
  LanguageModel model;
};

// Returns the three variants of the model in `folder`, which share all other weights, followed by the comparison models
// (name -> folder). dtype: "fp32" or "bf16". Throws an Error if the model in `folder` has a normalizer other than
// Elastic-Softmax, or if any model has a layer without attention.
std::vector<LatencyVariant> latency_variants(const std::filesystem::path& folder,
                                             const std::map<std::string, std::filesystem::path>& baselines,
                                             const std::string& device, const std::string& dtype);

}  // namespace lazy::measure
