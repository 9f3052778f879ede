#include "eval/python.h"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <locale.h>
#include <pcre2.h>
#include <wctype.h>
#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <numeric>
#include <unordered_set>

#include "core/error.h"
#include "data/tokenizers/unicode.h"

namespace lazy::eval {

namespace {

constexpr const char* kSpaceClass =
    "[\\t-\\r\\x{1c}-\\x{20}\\x{85}\\x{a0}\\x{1680}\\x{2000}-\\x{200a}\\x{2028}\\x{2029}\\x{202f}\\x{205f}\\x{3000}]";

// Decodes the character at `at` in valid UTF-8 and advances `at`. An invalid byte decodes to itself.
char32_t next_character(std::string_view text, size_t* at) {
  const auto byte = [&](size_t i) { return static_cast<unsigned char>(text[i]); };
  const unsigned char first = byte((*at)++);
  const int more = first >= 0xF0 ? 3 : first >= 0xE0 ? 2 : first >= 0xC0 ? 1 : 0;
  char32_t value = more == 3 ? first & 0x07 : more == 2 ? first & 0x0F : more == 1 ? first & 0x1F : first;
  for (int i = 0; i < more && *at < text.size() && (byte(*at) & 0xC0) == 0x80; ++i)
    value = value << 6 | (byte((*at)++) & 0x3F);
  return value;
}

using CaseMap = wint_t (*)(wint_t, locale_t);

// Applies the simple Unicode case mappings `first` to the first character and `rest` to the other characters. Uses the
// C library with the locale C.UTF-8, independent of the locale of the environment.
std::string mapped(const std::string& text, CaseMap first, CaseMap rest) {
  static const locale_t unicode = ::newlocale(LC_CTYPE_MASK, "C.UTF-8", locale_t{});
  if (!unicode) fail_run("eval", "the C library has no C.UTF-8 locale, which is needed for case mapping");
  std::string out;
  CaseMap map = first;
  for (size_t at = 0; at < text.size(); map = rest) {
    out += utf8_encode(static_cast<uint32_t>(map(next_character(text, &at), unicode)));
  }
  return out;
}

}  // namespace

bool python_is_space(char32_t c) {
  return (c >= 0x09 && c <= 0x0D) || (c >= 0x1C && c <= 0x20) || c == 0x85 || c == 0xA0 || c == 0x1680 ||
         (c >= 0x2000 && c <= 0x200A) || c == 0x2028 || c == 0x2029 || c == 0x202F || c == 0x205F || c == 0x3000;
}

std::string_view python_strip(std::string_view text) {
  size_t begin = text.size(), end = 0;
  for (size_t at = 0; at < text.size();) {
    const size_t start = at;
    if (python_is_space(next_character(text, &at))) continue;
    begin = std::min(begin, start);
    end = at;
  }
  return begin < end ? text.substr(begin, end - begin) : std::string_view();
}

std::string_view python_rstrip(std::string_view text) {
  size_t end = 0;
  for (size_t at = 0; at < text.size();) {
    if (!python_is_space(next_character(text, &at))) end = at;
  }
  return text.substr(0, end);
}

int64_t python_length(std::string_view text) {
  return std::count_if(text.begin(), text.end(), [](char c) { return (c & 0xC0) != 0x80; });
}

std::string python_lower(const std::string& text) { return mapped(text, ::towlower_l, ::towlower_l); }
std::string python_upper(const std::string& text) { return mapped(text, ::towupper_l, ::towupper_l); }
std::string python_capitalize(const std::string& text) { return mapped(text, ::towupper_l, ::towlower_l); }

int64_t python_word_count(std::string_view text) {
  int64_t runs = 0;
  bool in_space = false;
  for (size_t at = 0; at < text.size();) {
    const bool space = python_is_space(next_character(text, &at));
    runs += space && !in_space;
    in_space = space;
  }
  return runs + 1;
}

struct PythonSub::Code {
  pcre2_code* code = nullptr;
  ~Code() { pcre2_code_free(code); }
};

PythonSub::PythonSub(std::string pattern, std::string replacement)
    : code_(std::make_unique<Code>()), replacement_(std::move(replacement)) {
  pattern = replace_all(std::move(pattern), "\\s", kSpaceClass);
  int error = 0;
  PCRE2_SIZE where = 0;
  code_->code =
      pcre2_compile(reinterpret_cast<PCRE2_SPTR>(pattern.data()), pattern.size(), PCRE2_UTF, &error, &where, nullptr);
  if (!code_->code) {
    PCRE2_UCHAR message[120];
    pcre2_get_error_message(error, message, sizeof message);
    fail("eval", "pattern '{}': {} at character {}", pattern, reinterpret_cast<const char*>(message), where);
  }
  // if PCRE2 has no JIT support, this call fails and the pattern is interpreted
  pcre2_jit_compile(code_->code, PCRE2_JIT_COMPLETE);
}
PythonSub::~PythonSub() = default;

std::string PythonSub::operator()(const std::string& text) const {
  std::string out(text.size() + 64, '\0');
  for (int attempt = 0; attempt < 2; ++attempt) {
    PCRE2_SIZE size = out.size();
    const int result = pcre2_substitute(code_->code, reinterpret_cast<PCRE2_SPTR>(text.data()), text.size(), 0,
                                        PCRE2_SUBSTITUTE_GLOBAL | PCRE2_SUBSTITUTE_OVERFLOW_LENGTH, nullptr, nullptr,
                                        reinterpret_cast<PCRE2_SPTR>(replacement_.data()), replacement_.size(),
                                        reinterpret_cast<PCRE2_UCHAR*>(out.data()), &size);
    if (result == PCRE2_ERROR_NOMEMORY) {
      out.resize(size);
      continue;
    }
    if (result < 0) {
      PCRE2_UCHAR message[120];
      pcre2_get_error_message(result, message, sizeof message);
      fail("eval", "text: {}", reinterpret_cast<const char*>(message));
    }
    out.resize(size);
    return out;
  }
  fail_run("eval", "text: the result of a substitution did not fit in the buffer");
}

std::string replace_all(std::string text, std::string_view from, std::string_view to) {
  std::string out;
  size_t begin = 0;
  for (size_t at; (at = text.find(from, begin)) != std::string::npos; begin = at + from.size()) {
    out.append(text, begin, at - begin).append(to);
  }
  return out.append(text, begin, std::string::npos);
}

namespace {

// Seed sequence that initializes std::mt19937 as Python does: by the function init_by_array of the Mersenne Twister,
// whose key consists of the 32-bit words of the seed. std::seed_seq mixes these words differently.
struct InitByArray {
  using result_type = uint32_t;
  uint64_t seed;

  template <typename Iterator>
  void generate(Iterator state, Iterator end) const {
    const auto size = static_cast<size_t>(end - state);
    const std::array<uint32_t, 2> key = {static_cast<uint32_t>(seed), static_cast<uint32_t>(seed >> 32)};
    const size_t length = key[1] ? 2 : 1;
    const auto word = [&](size_t i) { return static_cast<uint32_t>(state[i]); };
    const auto mixed = [&](size_t i) { return word(i) ^ (word(i) >> 30); };
    state[0] = 19650218u;
    for (size_t i = 1; i < size; ++i) state[i] = 1812433253u * mixed(i - 1) + static_cast<uint32_t>(i);
    size_t i = 1;
    const auto step = [&](uint32_t factor, uint32_t addend) {
      state[i] = (word(i) ^ (mixed(i - 1) * factor)) + addend;
      if (++i < size) return;
      state[0] = word(size - 1);
      i = 1;
    };
    for (size_t k = 0; k < size; ++k) step(1664525u, key[k % length] + static_cast<uint32_t>(k % length));
    for (size_t k = 0; k + 1 < size; ++k) step(1566083941u, 0u - static_cast<uint32_t>(i));
    state[0] = 0x80000000u;
  }
};

std::mt19937 seeded(uint64_t seed) {
  InitByArray key{seed};
  return std::mt19937(key);
}

}  // namespace

PythonRandom::PythonRandom(uint64_t seed) : engine_(seeded(seed)) {}

double PythonRandom::random() {
  const auto high = static_cast<uint32_t>(engine_()) >> 5, low = static_cast<uint32_t>(engine_()) >> 6;
  return (high * 67108864.0 + low) * (1.0 / 9007199254740992.0);
}

uint64_t PythonRandom::below(uint64_t n) {
  const int bits = std::bit_width(n);
  uint64_t drawn;
  do drawn = static_cast<uint32_t>(engine_()) >> (32 - bits);  // the same bits as random.getrandbits(bits) in Python
  while (drawn >= n);
  return drawn;
}

std::vector<size_t> PythonRandom::sample(size_t n, size_t k) {
  std::vector<size_t> chosen;
  // Python's random.sample copies the population to a list and draws from this list if the list needs less memory than
  // a set of the k selected items. Otherwise it draws again whenever an item was already selected.
  double set_size = 21;
  if (k > 5) set_size += std::pow(4.0, std::ceil(std::log(static_cast<double>(k) * 3) / std::log(4.0)));
  if (static_cast<double>(n) <= set_size) {
    std::vector<size_t> pool(n);
    std::iota(pool.begin(), pool.end(), size_t{0});
    for (size_t i = 0; i < k; ++i) {
      const size_t j = below(n - i);
      chosen.push_back(pool[j]);
      pool[j] = pool[n - i - 1];
    }
  } else {
    std::unordered_set<size_t> selected;
    for (size_t i = 0; i < k; ++i) {
      size_t j = below(n);
      while (!selected.insert(j).second) j = below(n);
      chosen.push_back(j);
    }
  }
  return chosen;
}

}  // namespace lazy::eval
