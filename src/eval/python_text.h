// Python's text rules, where a benchmark's definition depends on them: white space, and re.sub.
#pragma once
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

namespace lazy::eval {

// What str.strip() strips and \s matches: ASCII 0x09-0x0D, 0x1C-0x20, and Unicode's spaces.
bool python_is_space(char32_t character);
std::string_view python_strip(std::string_view text);
std::string_view python_rstrip(std::string_view text);
int64_t python_length(std::string_view text);  // characters
// str.lower, str.upper, str.capitalize, by Unicode's simple case mapping: a character becomes one character ("ß" stays
// "ß" where Python's upper case is "SS", a final sigma is not told apart).
std::string python_lower(const std::string& text);
std::string python_upper(const std::string& text);
std::string python_capitalize(const std::string& text);
// len(re.split(r"\s+", text)): the strings around every run of white space, edge strings included, empty or not.
int64_t python_word_count(std::string_view text);

// re.sub(pattern, replacement, text). "\s" in the pattern means Python's; the replacement is PCRE2's ("$1"). Error
// on a pattern that is none.
class PythonSub {
 public:
  PythonSub(std::string pattern, std::string replacement);
  ~PythonSub();
  std::string operator()(const std::string& text) const;  // text: valid UTF-8

 private:
  struct Code;
  std::unique_ptr<Code> code_;
  std::string replacement_;
};

std::string replace_all(std::string text, std::string_view from, std::string_view to);  // str.replace

}  // namespace lazy::eval
