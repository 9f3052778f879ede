// A check before toml++ parses a text: non-ASCII characters outside strings and comments.
#pragma once
#include <cstdint>
#include <string>
#include <string_view>

namespace lazy {

// The line of the first non-ASCII character outside strings and comments, 0 if there is none. TOML does not allow them,
// and toml++ 3.3 reaches __builtin_unreachable() on some, such as U+00A1 to U+0499.
int64_t line_of_stray_character(std::string_view text);

// Throws Error "AREA: NAME:LINE: ..." for such a character.
void refuse_stray_characters(std::string_view text, const char* area, const std::string& name);

}  // namespace lazy
