// The registry of mixers: names, sizes, parameters, config.json fields and factory. Needs no LibTorch header. To add a
// mixer, define its MixerKind in its own pair of files and list it in mixer_kinds().
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
  MixerType type = MixerType::attention;  // its name is the value of `kind` in [model]
  std::string model_type;                 // in config.json
  std::string architecture;               // the class in config.json's architectures
  double hidden_ratio = 4;                // of the MLP
  bool mlp = true;                        // layers have an MLP after the mixer
  bool window = false;                    // contains (sliding-window) attention
  bool rope = false;                      // applies RoPE with base rope_theta to queries and keys
  double norm_eps = 1e-6;
  std::vector<const char*> keys;  // keys of [mixer] in addition to heads, key_dim, value_dim and chunk
  MixerConfig defaults;           // defaults of [mixer]; sizes of 0 are inferred from hidden_size
  // The mixer of one layer.
  std::unique_ptr<Mixer> (*make)(const ModelConfig&, int64_t layer, c10::Device);
  // Infers the sizes that are 0 from hidden_size.
  void (*infer_sizes)(ModelConfig&);
  // Error naming the field and the expected value.
  void (*check)(const ModelConfig&);
  // The parameters of one layer, named relative to it, in checkpoint order.
  std::vector<ParameterShape> (*shapes)(const ModelConfig&);
  // Reads and writes the mixer's own fields of config.json.
  void (*read)(const config_json::Fields&, ModelConfig&);
  void (*write)(const ModelConfig&, nlohmann::ordered_json&);
};

const std::vector<const MixerKind*>& mixer_kinds();
const MixerKind* find_mixer(const std::string& name);       // by name; null if there is none, as for "attention"
const MixerKind* find_mixer_type(const std::string& type);  // by model_type
// Sets the mixer of `config`, with its defaults.
void use_mixer(ModelConfig& config, const MixerKind& kind);
// Infers the mixer's sizes that are 0. Error if a given size or hidden_size is out of range.
void infer_mixer_sizes(ModelConfig& config);
// key_dim = hidden_size * above / (below * heads). Error if the division leaves a remainder.
int64_t even_key_dim(const ModelConfig& config, int64_t above = 1, int64_t below = 1);
// Infers and checks the sizes of mixers whose heads divide hidden_size and have values as wide as keys (TTT, Titans).
// The default head size is 64.
void infer_square_heads_sizes(ModelConfig& config);
void check_square_heads(const ModelConfig& config);
const MixerKind& mixer_kind(const ModelConfig& config);  // requires a mixer other than attention

}  // namespace lazy
