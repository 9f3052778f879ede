// Configurations that are small enough for explicit computations. Sizes are odd, heads are grouped, and weights are
// large enough that an error is visible.
#pragma once
#include <string>

#include "model/families/families.h"
#include "model/language_model.h"
#include "model/mixers/registry.h"

namespace lazy {

// Returns a configuration with the given normalizer. Elastic models also have a distance bias.
inline ModelConfig small_config(const std::string& normalizer = "softmax") {
  ModelConfig c;
  c.vocab_size = 61;
  c.hidden_size = 24;
  c.num_layers = 3;
  c.attention.num_heads = 4;
  c.attention.num_kv_heads = 2;
  c.attention.head_dim = 6;
  c.mlp.intermediate_size = 40;
  c.max_length = 32;
  c.attention.normalizer = *kNormalizerNames.find(normalizer);
  c.attention.offset_init = -0.7;
  c.attention.distance_bias_window = normalizer == "elastic" ? 5 : 0;
  c.attention.distance_bias_init_std = 1;
  c.init_std = 0.3;
  return c;
}

// Returns a configuration of one of Llama's families or of the families in model/families/. It has all properties that
// distinguish the family.
inline ModelConfig small_family(const std::string& name) {
  ModelConfig c = small_config();
  c.family = *kModelFamilies.find(name);
  if (const Family* family = find_family(name)) {
    family->defaults(c);
    if (name != "gpt_oss" && name != "granite_swa") c.attention.num_kv_heads = c.attention.num_heads;
    if (name == "bloom") c.mlp.intermediate_size = 4 * c.hidden_size;
    if (name == "gpt_oss")
      c.mlp.experts = 5, c.mlp.experts_per_token = 2, c.attention.window = 4, c.attention.full_layers = {1};
    if (name == "granite_swa") {
      c.attention.window = 4, c.attention.full_layers = {1}, c.attention.multiplier = 0.3;
      c.positions.layer_bases = {0, 1e4, 1e3};
      c.multipliers = {.embedding = 3, .branch = 0.6, .logits_divisor = 2};
    }
    if (name == "smollm3") c.positions.layer_bases = {2e6, 0, 2e6};
    if (name == "phi3") c.attention.window = 4, c.positions.partial_rotary_factor = 0.34, c.attention.num_kv_heads = 2;
    if (name == "gemma2") c.attention.window = 4, c.attention.full_layers = {1}, c.attention.softcap = 2;
    if (name == "gemma3_text") {
      c.attention.window = 4, c.attention.full_layers = {1}, c.attention.multiplier = 0.3;
      c.positions.layer_bases = {1e3, 1e6, 1e3};
      c.positions.rope_scaling = {.type = "linear", .factor = 2};
      c.multipliers.logits_softcap = 5;
    }
    if (name == "transfo-xl") {
      c.adaptive.cutoffs = {11, 30};
      c.adaptive.width = 21;
      c.adaptive.divisor = 2;
      c.adaptive.tied = {false, true, true};
      c.attention.window = 9;
      c.positions.clamp_length = 6;
    }
  }
  c.attention.qk_norm |= name == "qwen3";
  if (name == "qwen2") c.attention.qkv_bias = true;
  if (name == "qwen3") c.attention.qkv_bias = c.attention.output_bias = true;
  if (name == "mistral") c.attention.window = 5;
  return c;
}

// Returns a configuration with a mixer other than attention. If the mixer allows it, the second layer is an attention
// layer.
inline ModelConfig small_mixer(const std::string& name) {
  ModelConfig c = small_config();
  use_mixer(c, *find_mixer(name));
  if (name == "delta_net") {
    c.mixer.heads = 2;
    c.mixer.key_dim = c.mixer.value_dim = 12;
    c.mixer.attention_layers = {1};
  } else {
    c.hidden_size = 64;
  }
  infer_mixer_sizes(c);
  return c;
}

}  // namespace lazy
