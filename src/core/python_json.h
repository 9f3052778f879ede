// Parses JSON with the extensions of Python's `json` module.
#pragma once
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

namespace lazy {

// Parses standard JSON and the extensions that Python's json.loads accepts: NaN, Infinity and -Infinity as numbers;
// numbers outside of the range of a double, which become infinite; and escapes of lone surrogates ("\ud83d"), which
// become U+FFFD because strings here are UTF-8. Returns a discarded value (is_discarded()) for any other text.
template <typename Json = nlohmann::json>
Json parse_python_json(std::string_view text);

// Replaces {"__float__": "Infinity"}, "-Infinity" and "NaN" by numbers. transformers 5 writes config.json in this form.
template <typename Json>
void restore_special_floats(Json& value);

extern template void restore_special_floats<nlohmann::json>(nlohmann::json&);
extern template nlohmann::json parse_python_json<nlohmann::json>(std::string_view);
extern template nlohmann::ordered_json parse_python_json<nlohmann::ordered_json>(std::string_view);

}  // namespace lazy
