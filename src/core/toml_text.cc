#include "core/toml_text.h"

#include <algorithm>

#include "core/error.h"

namespace lazy {
namespace {

bool is_key(char c) {
  return (c >= '0' && c <= '9') || (c >= 'A' && c <= 'Z') || (c >= 'a' && c <= 'z') || c == '_' || c == '-';
}
bool is_quote(char c) { return c == '"' || c == '\''; }
bool ends_value(char c) { return std::string_view(" \t\r\n,]}").find(c) != std::string_view::npos; }

// Whether a value or a quoted key can begin after `run`, the characters since the last value, key or bracket; `before`
// is the character before the run. Otherwise toml++ treats a quote as part of a broken value and inspects all its
// characters.
bool value_begins(std::string_view run, char before) {
  if (run.empty()) return true;
  if (!run.ends_with('=')) return false;
  run.remove_suffix(1);
  if (run.empty()) return is_key(before) || is_quote(before);
  return std::all_of(run.begin(), run.end(), [](char c) { return is_key(c) || c == '.'; });
}

// The end of the string that begins at `at`; a single-line string ends at the end of its line at the latest.
size_t end_of_string(std::string_view text, size_t at) {
  const char quote = text[at];
  const std::string three(3, quote);
  const bool lines = text.substr(at, 3) == three;
  for (at += lines ? 3 : 1; at < text.size(); ++at) {
    if (text[at] == '\\' && quote == '"') {
      ++at;
    } else if (lines && text.substr(at, 3) == three) {
      at += 3;
      for (int n = 0; n < 2 && at < text.size() && text[at] == quote; ++n) ++at;  // up to two belong to the string
      return at;
    } else if (!lines && (text[at] == quote || text[at] == '\n')) {
      return at + 1;
    }
  }
  return text.size();
}

}  // namespace

int64_t line_of_stray_character(std::string_view text) {
  size_t at = text.starts_with("\xEF\xBB\xBF") ? 3 : 0;  // byte order mark
  size_t run = at;
  char before = '\n';
  while (at < text.size()) {
    const char c = text[at];
    if (static_cast<unsigned char>(c) >= 0x80)
      return 1 + std::count(text.begin(), text.begin() + static_cast<std::ptrdiff_t>(at), '\n');
    if (c == '#') {
      at = std::min(text.find('\n', at), text.size());
      run = at;
    } else if (is_quote(c) && value_begins(text.substr(run, at - run), before)) {
      at = run = end_of_string(text, at);
      before = text[at - 1];
    } else if ((c == '[' || c == '{') && value_begins(text.substr(run, at - run), before)) {
      before = c;
      run = ++at;
    } else {
      ++at;
      if (!ends_value(c)) continue;
      if (at - run > 1) before = text[at - 2];
      if (c != ' ' && c != '\t' && c != '\r') before = c;
      run = at;
    }
  }
  return 0;
}

void refuse_stray_characters(std::string_view text, const char* area, const std::string& name) {
  if (const int64_t line = line_of_stray_character(text)) {
    fail(area, "{}:{}: expected ASCII outside of strings and comments", name, line);
  }
}

}  // namespace lazy
