// A model's attention for pictures: the weights of single heads over a short text, and the small learned parameters.
#pragma once
#include <cstdint>
#include <filesystem>
#include <utility>
#include <vector>

#include "model/torch_forward.h"
#include "report/run.h"

namespace lazy {
class ActivationHooks;
class LanguageModel;
struct ModelConfig;
}  // namespace lazy

namespace lazy::sinks {

// The weights of every query on its visible keys: row i has i + 1 entries; keys outside a sliding window have zero.
using WeightRows = std::vector<std::vector<double>>;

// Weights of (layer, head) pairs, 0-based, over one text of at most a few thousand tokens. ids: (length), int64.
// `probes` take part in the pass: interventions.
std::vector<WeightRows> attention_weights(LanguageModel& model, const at::Tensor& ids,
                                          const std::vector<std::pair<int64_t, int64_t>>& heads,
                                          const ActivationHooks* probes = nullptr);
// Whether weights do not follow from q, k and the model's parameters alone and must be read as whole matrices: probes
// replace scores or weights of some layer, or the scores are Transformer-XL's.
bool needs_matrices(const ActivationHooks& probes, const ModelConfig& config);

// Offsets, distance biases and ALiBi slopes of a model folder; large tensors are not read. Empty for a model without
// them; a layer without attention has an empty row. Error names the file and the tensor.
report::LearnedParameters learned_parameters(const std::filesystem::path& model_directory);

}  // namespace lazy::sinks
