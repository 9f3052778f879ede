// Variants of a trained Elastic-Softmax model. Comparing their times shows separately how much time the second pass
// over the scores costs, and how much time the sparsity saves.
#pragma once
#include <filesystem>
#include <map>
#include <string>
#include <vector>

#include "model/language_model.h"

namespace lazy::measure {

// The model with its trained offsets, and therefore with the real fraction of keys with nonzero weight.
inline constexpr const char* kAsTrained = "as trained";
// The model with all offsets set to 0: it computes the second pass over the scores, but all keys have a nonzero weight.
inline constexpr const char* kAllAlive = "all alive";
// The same model with softmax in place of Elastic-Softmax, which needs no second pass.
inline constexpr const char* kOnePass = "one pass";

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
