// config.json of Mamba2 models as their authors' program writes it (state-spaces/mamba, the checkpoints
// state-spaces/mamba2-*): d_model, n_layer and ssm_cfg in place of Hugging Face's words, no model_type, a vocabulary
// that is padded.
#pragma once
#include <nlohmann/json_fwd.hpp>
#include <string>

#include "model/config.h"

namespace lazy {

bool is_native_mamba2(const nlohmann::json& config);
ModelConfig read_native_mamba2(const nlohmann::json& config, const std::string& file);
nlohmann::ordered_json write_native_mamba2(const ModelConfig& m);

}  // namespace lazy
