// JSON as Python's `json` module writes and reads it.
#pragma once
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

namespace lazy {

// Parses standard JSON and, in addition, what Python's json.loads accepts: NaN, Infinity and -Infinity as numbers;
// numbers outside the range of a double, which become infinite; and escapes of lone surrogates ("\ud83d"), which become
// U+FFFD because strings here are UTF-8. A discarded value (is_discarded()) if the text is neither.
template <typename Json = nlohmann::json>
Json parse_python_json(std::string_view text);

// Replaces {"__float__": "Infinity"}, "-Infinity" and "NaN" by numbers: transformers 5 writes config.json so.
template <typename Json>
void restore_special_floats(Json& value);

extern template void restore_special_floats<nlohmann::json>(nlohmann::json&);
extern template nlohmann::json parse_python_json<nlohmann::json>(std::string_view);
extern template nlohmann::ordered_json parse_python_json<nlohmann::ordered_json>(std::string_view);

}  // namespace lazy
