// Keys of config.json that change the computed function in transformers and for which this decoder supports only one
// value.
#pragma once
#include <string>

#include "model/config_json.h"

namespace lazy::config_json {

// Throws an Error if auto_map refers to model code in the folder although transformers implements the family, because
// such code may compute a different function. auto_map is accepted for families that transformers does not implement
// and for models with an output gate in attention, which both need code in the folder.
void check_custom_code(const Fields& fields, const std::string& type);

// Throws an Error that names the key if its value is not the supported one. `type` is the value of model_type.
void check_fixed_keys(const Fields& fields, const std::string& type);

}  // namespace lazy::config_json
