// Text utilities: human-readable numbers and times, spelling suggestions, UTF-8, escaping and Markdown tables.
#pragma once
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace lazy {

std::string human_count(double n);    // 1234567 -> "1.23M"
std::string human_bytes(double n);    // 1536 -> "1.5 KiB"
std::string human_seconds(double s);  // 3723 -> "1:02:03", 75 -> "1:15"

// Returns the candidate with the smallest edit distance to `word`, or "" if none is close enough to be a plausible
// typo.
std::string nearest(std::string_view word, const std::vector<std::string>& candidates);

// Returns the candidate that shares a word (at least four letters, separated by _, - or .) with `name` and has the
// fewest other words, or "" if there is none. The shortest candidate wins ties. For example, suggests window_size for
// sliding_window.
std::string with_shared_word(std::string_view name, const std::vector<std::string>& candidates);

// Returns the length of the longest prefix that ends with a complete UTF-8 character (for streaming output).
size_t complete_utf8_prefix(std::string_view bytes);
// Replaces invalid sequences by U+FFFD, like errors="replace" in Python.
std::string to_valid_utf8(std::string_view bytes);
bool is_valid_utf8(std::string_view bytes);

// Escapes control characters (ASCII and U+0080 to U+009F): \n, \t, \x1b.
std::string escape_control(std::string_view text);

int64_t count_characters(std::string_view text);  // number of UTF-8 characters
std::vector<std::string> split(std::string_view text, char separator);
std::string_view strip(std::string_view text);  // removes ASCII white space at both ends

// Breaks the text into lines of at most `columns` bytes. All lines except the first start with `indent`. Words are
// never broken.
std::string wrapped(const std::string& text, const std::string& indent = "", size_t columns = 120);

// Formats a Markdown table whose columns are padded to their widest cell. The first row is the header. All rows must
// have the same number of cells. `columns` contains 'l' or 'r' (alignment) for each column; the last letter applies to
// all further columns. `header_left`: left-align the header cells in every column.
std::string markdown_table(const std::vector<std::vector<std::string>>& rows, std::string_view columns,
                           bool header_left = false);

}  // namespace lazy
