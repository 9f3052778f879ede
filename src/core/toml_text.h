// What a text must be before toml++ may read it.
#pragma once
#include <cstdint>
#include <string>
#include <string_view>

namespace lazy {

// The line of the first character that is not ASCII and stands in neither a string nor a comment, 0 if there is none.
// TOML has no place for one, and toml++ 3.3 reaches __builtin_unreachable() when it meets one of U+00A1 to U+0499, for
// example.
int64_t line_of_stray_character(std::string_view text);

// An error of `area` that names that line of the file `name`.
void refuse_stray_characters(std::string_view text, const char* area, const std::string& name);

}  // namespace lazy
