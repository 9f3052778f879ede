// Attention data for plots: the attention weights of single heads for a short text, and the learned offsets, distance
// biases and ALiBi slopes.
#pragma once
#include <cstdint>
#include <filesystem>
#include <utility>
#include <vector>

#include "model/torch_forward.h"

namespace lazy {
class ActivationHooks;
class LanguageModel;
struct ModelConfig;
}  // namespace lazy

namespace lazy::sinks {

// The weights of every query on its visible keys. Row i has i + 1 entries; keys outside a sliding window have weight
// zero.
using WeightRows = std::vector<std::vector<double>>;

// Computes the weights of 0-based (layer, head) pairs for one text of at most a few thousand tokens. ids: (length),
// int64. `probes` contains interventions that apply during the pass.
std::vector<WeightRows> attention_weights(LanguageModel& model, const at::Tensor& ids,
                                          const std::vector<std::pair<int64_t, int64_t>>& heads,
                                          const ActivationHooks* probes = nullptr);
// Returns whether the weights must be read as whole matrices. This is necessary if probes replace the scores or weights
// of a layer or if the model is a Transformer-XL, because the weights cannot then be computed from q, k and the model
// parameters.
bool needs_matrices(const ActivationHooks& probes, const ModelConfig& config);

// Small learned parameters of attention.
struct LearnedParameters {
  std::vector<std::vector<double>> tau;                         // [layer][head]; empty if there is none
  std::vector<std::vector<std::vector<double>>> distance_bias;  // [layer][head][distance]; empty if there is none
  std::vector<std::vector<double>> alibi_slopes;                // [layer][head]; empty without ALiBi
  double tau_initial = -1;
};

// Reads offsets, distance biases and ALiBi slopes of a model folder without reading large tensors. The result is empty
// for a model without these parameters; a layer without attention has an empty row. Errors name the file and the
// tensor.
LearnedParameters learned_parameters(const std::filesystem::path& model_directory);

}  // namespace lazy::sinks
