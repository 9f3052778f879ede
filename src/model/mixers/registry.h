// The registry of mixers: names, sizes, parameters, config.json fields and factory functions. This header does not
// include LibTorch headers. To add a mixer, define its MixerKind in a separate pair of files and list it in
// mixer_kinds().
#pragma once
#include <nlohmann/json_fwd.hpp>

#include <memory>
#include <string>
#include <vector>

#include "model/parameters.h"
#include "model/torch_forward.h"

namespace lazy {

class Mixer;

namespace config_json {
class Fields;
}

struct MixerKind {
  MixerType type = MixerType::attention;  // the name of this type is the value of `kind` in [model]
  std::string model_type;                 // value of model_type in config.json
  std::string architecture;               // value of `architectures` in config.json
  double hidden_ratio = 4;                // default of hidden_ratio, which sets the width of the MLP
  bool mlp = true;                        // layers have an MLP after the mixer
  bool window = false;                    // the mixer contains attention, with or without a sliding window
  bool rope = false;                      // the mixer applies RoPE with base rope_theta to queries and keys
  double norm_eps = 1e-6;
  std::vector<const char*> keys;  // keys of [mixer] in addition to heads, key_dim, value_dim and chunk
  MixerConfig defaults;           // defaults of [mixer]; sizes that are 0 are inferred from hidden_size
  // Creates the mixer of one layer.
  std::unique_ptr<Mixer> (*make)(const ModelConfig&, int64_t layer, c10::Device);
  // Replaces the sizes of the mixer that are 0 by values that are inferred from hidden_size.
  void (*infer_sizes)(ModelConfig&);
  // Throws an Error that names the invalid field and the expected value.
  void (*check)(const ModelConfig&);
  // The parameters of one layer in checkpoint order, with names relative to the layer.
  std::vector<ParameterShape> (*shapes)(const ModelConfig&);
  // Read and write the mixer's fields of config.json.
  void (*read)(const config_json::Fields&, ModelConfig&);
  void (*write)(const ModelConfig&, nlohmann::ordered_json&);
};

const std::vector<const MixerKind*>& mixer_kinds();
const MixerKind* find_mixer(const std::string& name);  // looks up by name; null for unknown names and for "attention"
const MixerKind* find_mixer_type(const std::string& type);  // looks up by model_type; null for unknown values
// Sets the mixer of `config` and the default sizes of this mixer.
void use_mixer(ModelConfig& config, const MixerKind& kind);
// Replaces the sizes of the mixer that are 0 by inferred values. Throws an Error if a size or hidden_size is out of
// range.
void infer_mixer_sizes(ModelConfig& config);
// Returns hidden_size * above / (below * heads), the default of MixerConfig::key_dim. Throws an Error if the division
// leaves a remainder.
int64_t even_key_dim(const ModelConfig& config, int64_t above = 1, int64_t below = 1);
// Infer and check the sizes of mixers (TTT, Titans) whose number of heads must divide hidden_size and whose values have
// the same size as their keys. The default head size is 64.
void infer_square_heads_sizes(ModelConfig& config);
void check_square_heads(const ModelConfig& config);
const MixerKind& mixer_kind(const ModelConfig& config);  // the mixer of `config` must not be attention

}  // namespace lazy
