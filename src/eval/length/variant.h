// The same weights under other positions or another cache, in a few words: "rope-base=500000", "positions=yarn:4",
// "cache=streaming:4+508", or several of these separated by commas.
#pragma once
#include <string>

#include "model/model_options.h"

namespace lazy::eval::length {

// `base` with what the text changes; an empty text changes nothing. Error names the text and what was expected.
ModelOptions parse_variant(const std::string& text, ModelOptions base = {});

}  // namespace lazy::eval::length
