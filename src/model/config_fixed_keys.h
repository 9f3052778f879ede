// Keys of config.json that change the function in transformers and for which this decoder supports one value.
#pragma once
#include <string>

#include "model/config_json.h"

namespace lazy::config_json {

// Error if auto_map names model code although transformers has the family: such code may compute another function.
// Other families need code in transformers, and so do models with a gate of the attention output.
void check_custom_code(const Fields& fields, const std::string& type);

// Error naming the key if its value is not the supported one. `type` is model_type.
void check_fixed_keys(const Fields& fields, const std::string& type);

}  // namespace lazy::config_json
