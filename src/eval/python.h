// Python's behavior for text and random numbers, for benchmarks whose definition depends on it: str methods, re.sub and
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

// Returns whether str.strip() removes the character and \s matches it: ASCII 0x09-0x0D, 0x1C-0x20, and Unicode spaces.
bool python_is_space(char32_t character);
std::string_view python_strip(std::string_view text);
std::string_view python_rstrip(std::string_view text);
int64_t python_length(std::string_view text);  // len(text) in Python: number of characters
// Like str.lower, str.upper and str.capitalize in Python, with two differences. One character is always mapped to one
// character ("ß" stays "ß" in upper case, but becomes "SS" in Python). A final sigma is not treated specially.
std::string python_lower(const std::string& text);
std::string python_upper(const std::string& text);
std::string python_capitalize(const std::string& text);
// Returns len(re.split(r"\s+", text)). Leading and trailing white space each count as one empty string.
int64_t python_word_count(std::string_view text);
// Equivalent to str.replace in Python.
std::string replace_all(std::string text, std::string_view from, std::string_view to);

// Equivalent to re.sub(pattern, replacement, text). "\s" in the pattern has Python's meaning. The replacement uses the
// syntax of PCRE2 ("$1"). Throws Error for an invalid pattern.
class PythonSub {
 public:
  PythonSub(std::string pattern, std::string replacement);
  ~PythonSub();
  std::string operator()(const std::string& text) const;  // text must be valid UTF-8

 private:
  struct Code;
  std::unique_ptr<Code> code_;
  std::string replacement_;
};

// Generates exactly the same numbers as Python's random.Random.
class PythonRandom {
 public:
  explicit PythonRandom(uint64_t seed);  // equivalent to random.Random(seed) in Python
  double random();                       // a number in [0, 1) with 53 random bits
  uint64_t below(uint64_t n);            // a number in [0, n), like Random._randbelow in Python; 1 <= n < 2^32
  // Equivalent to random.sample(range(n), k); requires k <= n.
  std::vector<size_t> sample(size_t n, size_t k);

 private:
  std::mt19937 engine_;
};

}  // namespace lazy::eval
