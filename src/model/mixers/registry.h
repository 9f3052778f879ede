// The registration of mixers: names, sizes, parameters, config.json fields and factory. Needs no LibTorch header. To
// add a mixer, define its MixerKind in a file pair of its own and list it in mixer_kinds().
#pragma once
#include <nlohmann/json_fwd.hpp>

#include <memory>
#include <string>
#include <vector>

#include "model/parameters.h"

namespace c10 {
struct Device;
}

namespace lazy {

class Mixer;

namespace config_json {
class Fields;
}

struct MixerKind {
  MixerType type = MixerType::attention;  // its name is `kind` in [model]
  std::string model_type;                 // in config.json
  std::string architecture;               // the class in config.json's architectures
  double hidden_ratio = 4;                // of the MLP
  bool mlp = true;                        // a layer has an MLP beside the mixer
  bool window = false;                    // it contains (sliding-window) attention
  bool rope = false;                      // applies RoPE with base rope_theta to queries and keys
  double norm_eps = 1e-6;
  std::vector<const char*> keys;  // of [mixer], beside heads, key_dim, value_dim and chunk, which all read
  MixerConfig defaults;           // of [mixer]; sizes that are 0 follow from hidden_size
  // The mixer of one layer.
  std::unique_ptr<Mixer> (*make)(const ModelConfig&, int64_t layer, c10::Device);
  // Replaces sizes that are 0 by those that follow from hidden_size.
  void (*infer_sizes)(ModelConfig&);
  // Error naming the field and what would be right.
  void (*check)(const ModelConfig&);
  // Of one layer, named within it, in the checkpoint's order.
  std::vector<ParameterShape> (*shapes)(const ModelConfig&);
  // The mixer's own fields of config.json.
  void (*read)(const config_json::Fields&, ModelConfig&);
  void (*write)(const ModelConfig&, nlohmann::ordered_json&);
};

const std::vector<const MixerKind*>& mixer_kinds();
const MixerKind* find_mixer(const std::string& name);       // by name; null: none, as for "attention"
const MixerKind* find_mixer_type(const std::string& type);  // by model_type
// Makes the mixer that of `config`, with its defaults.
void use_mixer(ModelConfig& config, const MixerKind& kind);
// Replaces the mixer's sizes that are 0. Error when those that are given, or hidden_size, are out of range.
void infer_mixer_sizes(ModelConfig& config);
// The key_dim that follows from hidden_size, shared evenly by the heads: hidden_size times above / below. Error when
// that is no whole number.
int64_t even_key_dim(const ModelConfig& config, int64_t above = 1, int64_t below = 1);
// Heads that share hidden_size and have values as wide as keys (TTT, Titans): 64 wide unless they are given, and their
// check.
void infer_square_heads_sizes(ModelConfig& config);
void check_square_heads(const ModelConfig& config);
const MixerKind& mixer_kind(const ModelConfig& config);  // of a model whose mixer is not attention

}  // namespace lazy
