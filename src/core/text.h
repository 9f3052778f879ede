// Text helpers: human-readable numbers and times, spelling suggestions, UTF-8, escaping, Markdown tables.
#pragma once
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace lazy {

std::string human_count(double n);    // 1234567 -> "1.23M"
std::string human_bytes(double n);    // 1536 -> "1.5 KiB"
std::string human_seconds(double s);  // 3723 -> "1:02:03", 75 -> "1:15"

// The candidate with the smallest edit distance to `word`, or "" if none is near enough to be a plausible typo.
std::string nearest(std::string_view word, const std::vector<std::string>& candidates);

// The candidate that shares a word (four letters or more, separated by _, - or .) with `name` and has the fewest other
// words, or "" if there is none; the shortest of equals. Suggests window_size for sliding_window.
std::string with_shared_word(std::string_view name, const std::vector<std::string>& candidates);

// Length of the longest prefix that ends on a complete UTF-8 character (for streaming output).
size_t complete_utf8_prefix(std::string_view bytes);
// Invalid sequences become U+FFFD, as Python's errors="replace" does.
std::string to_valid_utf8(std::string_view bytes);
bool is_valid_utf8(std::string_view bytes);

// Control characters (ASCII and U+0080 to U+009F) as escapes: \n, \t, \x1b.
std::string escape_control(std::string_view text);

std::string html_escape(std::string_view text);
int64_t count_characters(std::string_view text);  // of UTF-8
std::vector<std::string> split(std::string_view text, char separator);
std::string_view strip(std::string_view text);  // without ASCII white space at both ends

// Lines of at most `columns` bytes; those after the first begin with `indent`. A word is never broken.
std::string wrapped(const std::string& text, const std::string& indent = "", size_t columns = 120);

// A Markdown table whose columns are padded to their widest cell. The first row is the header; all rows have the same
// number of cells. `columns` has an 'l' or 'r' (alignment) for each column, the last one counts for further columns.
// `header_left`: header cells are left-aligned in every column.
std::string markdown_table(const std::vector<std::vector<std::string>>& rows, std::string_view columns,
                           bool header_left = false);

}  // namespace lazy
