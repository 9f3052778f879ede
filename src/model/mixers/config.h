// Configuration of mixers other than attention: the section [mixer] in TOML, its validation, and the fields of these
// mixers in config.json.
#pragma once
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "model/config.h"

namespace lazy {

namespace config_json {
class Fields;
}

// The values of `kind` in [model]: "lazy", "transformer" and the names of the mixers.
std::vector<std::string> model_kinds();
// Reads attention_layers or attention_every of [model], and [mixer]. Requires num_hidden_layers.
void read_mixer(Config& config, ModelConfig& m);
// Throws an Error if a model of this kind, which uses attention in every layer, has a section [mixer] or keys of hybrid
// models.
void refuse_mixer_keys(Config& config, const std::string& kind);
// Throws an Error if a model without attention has attention keys in [model].
void refuse_attention_keys(Config& config, const ModelConfig& m);
// Validates a model with a mixer other than attention. Throws an Error that names the invalid field.
void check_mixer(const ModelConfig& m);

// Reads the field `attn` of flash-linear-attention (FLA): the attention layers of a hybrid model and their sizes.
void read_hybrid(const config_json::Fields& fields, ModelConfig& m);
void write_hybrid(const ModelConfig& m, nlohmann::ordered_json& out);
// Reads the fields of Lazy Attention, at the top level of config.json or in `attn`.
void read_lazy(const config_json::Fields& fields, ModelConfig& m);
void write_lazy(const ModelConfig& m, nlohmann::ordered_json& out);
// Reads the subset of the Lazy Attention fields that a converted model has: normalizer, offset and distance bias.
void read_elastic(const config_json::Fields& fields, ModelConfig& m);
void write_elastic(const ModelConfig& m, nlohmann::ordered_json& out);

}  // namespace lazy
