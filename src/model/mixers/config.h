// What a configuration says about mixers other than attention: [mixer] in TOML, the limits, and config.json's part.
#pragma once
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "model/config.h"

namespace lazy {

namespace config_json {
class Fields;
}

// `kind` in [model]: "lazy", "transformer" and the mixers.
std::vector<std::string> model_kinds();
// attention_layers or attention_every of [model], and [mixer]. After num_hidden_layers is known.
void read_mixer(Config& config, ModelConfig& m);
// Refuses [mixer] and the keys of hybrids in a model of this kind, where every layer attends.
void refuse_mixer_keys(Config& config, const std::string& kind);
// Refuses keys of [model] that only attention has in a model that never attends.
void refuse_attention_keys(Config& config, const ModelConfig& m);
// Error naming the field. Of models whose mixer is not attention.
void check_mixer(const ModelConfig& m);

// FLA's `attn`: the layers of a hybrid that attend, and their sizes.
void read_hybrid(const config_json::Fields& fields, ModelConfig& m);
void write_hybrid(const ModelConfig& m, nlohmann::ordered_json& out);
// Lazy Attention's own fields, at the top of config.json or within `attn`.
void read_lazy(const config_json::Fields& fields, ModelConfig& m);
void write_lazy(const ModelConfig& m, nlohmann::ordered_json& out);

}  // namespace lazy
