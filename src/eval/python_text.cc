#include "eval/python_text.h"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

#include <locale.h>
#include <wctype.h>

#include <algorithm>

#include "core/error.h"
#include "data/tokenizers/utf8.h"

namespace lazy::eval {
namespace {

constexpr const char* kSpaceClass =
    "[\\t-\\r\\x{1c}-\\x{20}\\x{85}\\x{a0}\\x{1680}\\x{2000}-\\x{200a}\\x{2028}\\x{2029}\\x{202f}\\x{205f}\\x{3000}]";

// Decodes the character at `at` of valid UTF-8 and moves behind it. A stray byte stands for itself.
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

// The C library's tables: Unicode's simple case mapping, whatever language the environment asks for.
std::string mapped(const std::string& text, CaseMap first, CaseMap rest) {
  static const locale_t unicode = ::newlocale(LC_CTYPE_MASK, "C.UTF-8", locale_t{});
  if (!unicode) fail_run("eval", "the C library has no C.UTF-8 locale, whose case mapping is needed");
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
  pcre2_jit_compile(code_->code, PCRE2_JIT_COMPLETE);  // only faster; without it the pattern is interpreted
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
  fail_run("eval", "text: substitution did not fit");
}

std::string replace_all(std::string text, std::string_view from, std::string_view to) {
  std::string out;
  size_t begin = 0;
  for (size_t at; (at = text.find(from, begin)) != std::string::npos; begin = at + from.size()) {
    out.append(text, begin, at - begin).append(to);
  }
  return out.append(text, begin, std::string::npos);
}

}  // namespace lazy::eval
