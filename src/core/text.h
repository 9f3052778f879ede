// Text helpers: numbers and times as people write them, the nearest known word, UTF-8.
#pragma once
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace lazy {

std::string human_count(double n);    // 1234567 -> "1.23M"
std::string human_bytes(double n);    // 1536 -> "1.5 KiB"
std::string human_seconds(double s);  // 3723 -> "1:02:03", 75 -> "1:15"

// The candidate with the smallest edit distance to `word`, or "" if none is near enough to be a plausible slip.
std::string nearest(std::string_view word, const std::vector<std::string>& candidates);

// Length of the longest prefix that ends on a complete UTF-8 character (for streaming output).
size_t complete_utf8_prefix(std::string_view bytes);
// Invalid sequences become U+FFFD, as Python's errors="replace" does.
std::string to_valid_utf8(std::string_view bytes);

// Control characters (ASCII's, and U+0080 to U+009F) as escapes: \n, \t, \x1b.
std::string escape_control(std::string_view text);

std::string html_escape(std::string_view text);
std::vector<std::string> split(std::string_view text, char separator);
std::string_view strip(std::string_view text);  // ASCII white space at both ends

}  // namespace lazy
