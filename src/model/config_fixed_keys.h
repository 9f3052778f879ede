// Keys of config.json that change the computed function in transformers and for which this decoder supports only one
// value.
#pragma once
#include <string>

#include "model/config_json.h"

namespace lazy::config_json {

// Throws an Error if auto_map refers to model code although transformers implements the family: such code may compute a
// different function. Families unknown to transformers need code in the folder, and so do models with a gate of the
// attention output; for them auto_map is accepted.
void check_custom_code(const Fields& fields, const std::string& type);

// Throws an Error that names the key if its value is not the supported one. `type` is the value of model_type.
void check_fixed_keys(const Fields& fields, const std::string& type);

}  // namespace lazy::config_json
