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

// Returns the possible values of `kind` in [model]: "lazy", "transformer", "gpt2" and the names of the mixers.
std::vector<std::string> model_kinds();
// Reads attention_layers or attention_every from the section [model], and the section [mixer]. Call it after
// num_hidden_layers has been read.
void read_mixer(Config& config, ModelConfig& m);
// Throws an Error if the configuration of a model with attention in every layer has a section [mixer] or keys that only
// hybrid models have. `kind` is the value of `kind` in [model].
void refuse_mixer_keys(Config& config, const std::string& kind);
// Throws an Error if a model without attention has attention keys in [model].
void refuse_attention_keys(Config& config, const ModelConfig& m);
// Validates a model with a mixer other than attention. Throws an Error that names the invalid field.
void check_mixer(const ModelConfig& m);

// Reads the field `attn` of flash-linear-attention (FLA): the attention layers of a hybrid model and their sizes.
void read_hybrid(const config_json::Fields& fields, ModelConfig& m);
void write_hybrid(const ModelConfig& m, nlohmann::ordered_json& out);
// Reads the fields of Lazy Attention, which are at the top level of config.json or in its field `attn`.
void read_lazy(const config_json::Fields& fields, ModelConfig& m);
void write_lazy(const ModelConfig& m, nlohmann::ordered_json& out);
// Reads the fields of a pretrained model that was converted to elastic softmax: the normalizer, the offset and the
// distance bias.
void read_elastic(const config_json::Fields& fields, ModelConfig& m);
void write_elastic(const ModelConfig& m, nlohmann::ordered_json& out);

}  // namespace lazy
