// Python's rules for text and random numbers where a benchmark's definition depends on them: str methods, re.sub,
// random.Random.
#pragma once
#include <cstddef>
#include <cstdint>
#include <memory>
#include <random>
#include <string>
#include <string_view>
#include <vector>

namespace lazy::eval {

// What str.strip() strips and \s matches: ASCII 0x09-0x0D, 0x1C-0x20, and Unicode's spaces.
bool python_is_space(char32_t character);
std::string_view python_strip(std::string_view text);
std::string_view python_rstrip(std::string_view text);
int64_t python_length(std::string_view text);  // characters
// str.lower, str.upper, str.capitalize, by Unicode's simple case mapping. Unlike Python's, it maps one character to one
// character ("ß" stays "ß" where Python gives "SS") and has no special case for a final sigma.
std::string python_lower(const std::string& text);
std::string python_upper(const std::string& text);
std::string python_capitalize(const std::string& text);
// len(re.split(r"\s+", text)): leading and trailing white space counts an empty string each.
int64_t python_word_count(std::string_view text);
std::string replace_all(std::string text, std::string_view from, std::string_view to);  // str.replace

// re.sub(pattern, replacement, text). "\s" in the pattern has Python's meaning; the replacement has PCRE2's syntax
// ("$1"). Error on an invalid pattern.
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

// random.Random, number for number.
class PythonRandom {
 public:
  explicit PythonRandom(uint64_t seed);  // random.Random(seed)
  double random();                       // [0, 1) with 53 bits
  uint64_t below(uint64_t n);            // Random._randbelow: what choice, sample and shuffle draw; 1 <= n < 2^32
  // random.sample(range(n), k); k <= n.
  std::vector<size_t> sample(size_t n, size_t k);

 private:
  std::mt19937 engine_;
};

}  // namespace lazy::eval
