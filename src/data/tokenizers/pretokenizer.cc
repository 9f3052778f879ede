#include "data/tokenizers/pretokenizer.h"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

#include "core/error.h"
#include "data/tokenizers/unicode.h"

namespace lazy {

namespace {

constexpr size_t kShortText = 64 << 10;
constexpr uint32_t kShortLimit = 20'000'000;

}  // namespace

struct Regex::Impl {
  std::string pattern;
  pcre2_code* code = nullptr;
  pcre2_match_context *context = nullptr, *short_context = nullptr;
  bool jit = false;
  ~Impl() {
    pcre2_match_context_free(context);
    pcre2_match_context_free(short_context);
    pcre2_code_free(code);
  }
};

std::string with_unicode_white_space(const std::string& pattern) {
  // PCRE2's \s also matches U+180E, which is no white space since Unicode 6.3.
  static const std::string kSpaces =
      R"(\t-\r\x{20}\x{85}\x{A0}\x{1680}\x{2000}-\x{200A}\x{2028}\x{2029}\x{202F}\x{205F}\x{3000})";
  std::string out;
  bool in_class = false;
  int nested = 0;  // depth of classes inside the class, as in BLOOM's [^(\s|[.,!?])]
  for (size_t i = 0; i < pattern.size(); ++i) {
    const char c = pattern[i];
    if (c == '\\' && i + 1 < pattern.size()) {
      const char next = pattern[++i];
      if (next == 's') {
        out += in_class ? kSpaces : "[" + kSpaces + "]";
      } else if (next == 'S' && !in_class) {
        out += "[^" + kSpaces + "]";
      } else {
        out += c;
        out += next;
      }
      continue;
    }
    if (c == '[' && !in_class) {
      in_class = true;
      out += c;
      if (i + 1 < pattern.size() && pattern[i + 1] == '^') out += pattern[++i];
      if (i + 1 < pattern.size() && pattern[i + 1] == ']') out += pattern[++i];  // a literal bracket
      continue;
    }
    const bool plain = i + 1 < pattern.size() && pattern[i + 1] != '^' && pattern[i + 1] != ':';
    if (c == '[' && in_class && plain) {
      ++nested;
      continue;
    }
    if (c == ']' && nested > 0) {
      --nested;
      continue;
    }
    if (c == ']') in_class = false;
    out += c;
  }
  return out;
}

Regex::Regex(const std::string& pattern, const std::string& field) : impl_(std::make_unique<Impl>()) {
  impl_->pattern = with_unicode_white_space(pattern);
  int error = 0;
  PCRE2_SIZE offset = 0;
  impl_->code = pcre2_compile(reinterpret_cast<PCRE2_SPTR>(impl_->pattern.data()), impl_->pattern.size(),
                              // \C could split a UTF-8 character.
                              PCRE2_UTF | PCRE2_UCP | PCRE2_NEVER_BACKSLASH_C, &error, &offset, nullptr);
  if (!impl_->code) {
    PCRE2_UCHAR message[256];
    pcre2_get_error_message(error, message, sizeof message);
    fail("tokenizer", "{}: expected a regular expression, found \"{}\": {}", field, pattern,
         reinterpret_cast<const char*>(message));
  }
  // Systems that forbid just-in-time compilation use the slower interpreter.
  impl_->jit = pcre2_jit_compile(impl_->code, PCRE2_JIT_COMPLETE) == 0;
  impl_->context = pcre2_match_context_create(nullptr);
  pcre2_set_match_limit(impl_->context, UINT32_MAX);  // long runs of spaces are valid
  pcre2_set_depth_limit(impl_->context, UINT32_MAX);
  // On a short text only pathological patterns such as (a+)+$ reach this limit.
  impl_->short_context = pcre2_match_context_copy(impl_->context);
  pcre2_set_match_limit(impl_->short_context, kShortLimit);
}

Regex::~Regex() = default;
Regex::Regex(Regex&&) noexcept = default;
Regex& Regex::operator=(Regex&&) noexcept = default;

Regex::Scanner::Scanner(const Regex& regex, std::string_view text)
    : regex_(regex), text_(text), match_(pcre2_match_data_create_from_pattern(regex.impl_->code, nullptr)) {}

Regex::Scanner::~Scanner() { pcre2_match_data_free(static_cast<pcre2_match_data*>(match_)); }

bool Regex::Scanner::next(size_t* begin, size_t* end) {
  const Impl& regex = *regex_.impl_;
  auto* match = static_cast<pcre2_match_data*>(match_);
  const auto* subject = reinterpret_cast<PCRE2_SPTR>(text_.data());
  if (at_ >= text_.size()) return false;
  pcre2_match_context* context = text_.size() <= kShortText ? regex.short_context : regex.context;
  const int found = regex.jit ? pcre2_jit_match(regex.code, subject, text_.size(), at_, PCRE2_NOTEMPTY, match, context)
                              : pcre2_match(regex.code, subject, text_.size(), at_, PCRE2_NOTEMPTY | PCRE2_NO_UTF_CHECK,
                                            match, context);
  if (found == PCRE2_ERROR_NOMATCH) return false;
  if (found < 0) {
    PCRE2_UCHAR message[256];
    pcre2_get_error_message(found, message, sizeof message);
    fail_run("tokenizer", "the pre-tokenizer's regular expression failed: {}", reinterpret_cast<const char*>(message));
  }
  const PCRE2_SIZE* bounds = pcre2_get_ovector_pointer(match);
  *begin = bounds[0];
  *end = at_ = bounds[1];
  return true;
}

void PreTokenizer::add_split(const std::string& pattern, const std::string& field, bool only_matches) {
  steps_.push_back({std::make_unique<Regex>(pattern, field), only_matches});
  description_ += pattern + (only_matches ? "\1" : "\2");
}

size_t PreTokenizer::valid_prefix(std::string_view text) {
  size_t at = 0;
  while (at < text.size()) {
    const size_t length = utf8_length(text, at);
    if (length == 0) break;
    at += length;
  }
  return at;
}

size_t PreTokenizer::invalid_prefix(std::string_view text) {
  size_t at = 0;
  while (at < text.size() && utf8_length(text, at) == 0) ++at;
  return at;
}

}  // namespace lazy
