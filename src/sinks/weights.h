// Attention weights of one head as a matrix, for short texts and pictures, by the kernels' float64 definition.
#pragma once
#include <ATen/core/Tensor.h>

#include <utility>
#include <vector>

#include "model/language_model.h"

namespace lazy::sinks {

// The weights of every query on the keys that it sees: row i has i + 1 entries, those outside a sliding window are
// zero.
using WeightRows = std::vector<std::vector<double>>;

// Weights of (layer, head) pairs, 0-based, over one text of at most a few thousand tokens. ids: (length), int64.
// `probes`: what the model is under.
std::vector<WeightRows> attention_weights(LanguageModel& model, const at::Tensor& ids,
                                          const std::vector<std::pair<int64_t, int64_t>>& heads,
                                          const Probes* probes = nullptr);
// Whether weights do not follow from q, k and the model's terms alone, so that they are made as matrices: probes
// replace scores or weights of some layer, or the scores are Transformer-XL's.
bool needs_matrices(const Probes& probes, const ModelConfig& config);

}  // namespace lazy::sinks
