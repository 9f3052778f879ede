// Configuration of mixers other than attention: [mixer] in TOML, validation, and their fields of config.json.
#pragma once
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "model/config.h"

namespace lazy {

namespace config_json {
class Fields;
}

// Values of `kind` in [model]: "lazy", "transformer" and the mixers' names.
std::vector<std::string> model_kinds();
// Reads attention_layers or attention_every of [model], and [mixer]. Requires num_hidden_layers.
void read_mixer(Config& config, ModelConfig& m);
// Error if a model of this kind, which uses attention in every layer, has [mixer] or keys of hybrid models.
void refuse_mixer_keys(Config& config, const std::string& kind);
// Error if a model without attention has attention keys in [model].
void refuse_attention_keys(Config& config, const ModelConfig& m);
// Validates a model with a mixer other than attention. Error naming the field.
void check_mixer(const ModelConfig& m);

// Reads FLA's `attn`: the attention layers of a hybrid model and their sizes.
void read_hybrid(const config_json::Fields& fields, ModelConfig& m);
void write_hybrid(const ModelConfig& m, nlohmann::ordered_json& out);
// Reads the Lazy Attention fields, at the top level of config.json or within `attn`.
void read_lazy(const config_json::Fields& fields, ModelConfig& m);
void write_lazy(const ModelConfig& m, nlohmann::ordered_json& out);
// Those of them that a converted model has: normalizer, offset and distance bias.
void read_elastic(const config_json::Fields& fields, ModelConfig& m);
void write_elastic(const ModelConfig& m, nlohmann::ordered_json& out);

}  // namespace lazy
